/* engine: filled by the work in progress */
typedef int sheaf__engine_floor;
