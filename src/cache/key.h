/* cache/key.h - the version of the arithmetic, which separates what is not the same to the bit. */
#ifndef SHEAF_CACHE_KEY_H
#define SHEAF_CACHE_KEY_H

/* Raised whenever the same tokens, model and layout would give other bits of K or V than before: a
 * change of any order of operations, rounding or approximation that docs/adr/0003-defined-order.md
 * fixes. Blocks of an older version are then never found, in memory, in files or by others. Not raised
 * for what gives the same bits. Must match the version in that document. */
#define SHEAF__NUMERICS_VERSION 1

#endif
