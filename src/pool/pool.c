/* pool: filled by the work in progress */
typedef int sheaf__pool_floor;
