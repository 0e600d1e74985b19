/* codec: filled by the work in progress */
typedef int sheaf__codec_floor;
