/* sheaf/sheaf.h - all of libsheaf: a paged KV cache for language-model inference.
 *
 *   sheaf/status.h  what every call answers
 *   sheaf/codec.h   how K and V are stored in a tile
 *   sheaf/pool.h    which blocks exist, and who holds them
 *   sheaf/view.h    one layer of one sequence as kernels see it
 *   sheaf/rows.h    every row's state; compaction
 *   sheaf/cache.h   whose tokens are in which blocks
 *   sheaf/key.h     namespaces and content keys
 *   sheaf/prefix.h  what was computed once is found again
 *   sheaf/ledger.h  the accounts of that
 *   sheaf/wire.h    blocks that leave the process and come back
 *   sheaf/attn.h    what blocks answer a query
 */
#ifndef SHEAF_H
#define SHEAF_H

#include "sheaf/attn.h"
#include "sheaf/cache.h"
#include "sheaf/codec.h"
#include "sheaf/key.h"
#include "sheaf/ledger.h"
#include "sheaf/pool.h"
#include "sheaf/prefix.h"
#include "sheaf/rows.h"
#include "sheaf/status.h"
#include "sheaf/view.h"
#include "sheaf/wire.h"

#endif
