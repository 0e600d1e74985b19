/* sheaf/sheaf.h - all of libsheaf: a paged KV cache for language-model inference.
 *
 *   sheaf/status.h  what every call answers
 *   sheaf/codec.h   how K and V are stored in a tile
 *   sheaf/pool.h    which blocks exist, and who holds them
 *   sheaf/view.h    one layer of one sequence as kernels see it
 *   sheaf/cache.h   whose tokens are in which blocks
 *   sheaf/attn.h    what blocks answer a query
 */
#ifndef SHEAF_H
#define SHEAF_H

#include "sheaf/attn.h"
#include "sheaf/cache.h"
#include "sheaf/codec.h"
#include "sheaf/pool.h"
#include "sheaf/status.h"
#include "sheaf/view.h"

#endif
