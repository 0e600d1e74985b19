/* attn: filled by the work in progress */
typedef int sheaf__attn_floor;
