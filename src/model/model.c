/* model: filled by the work in progress */
typedef int sheaf__model_floor;
