/* cli: filled by the work in progress */
typedef int sheaf__cli_floor;
