/* cache: filled by the work in progress */
typedef int sheaf__cache_floor;
