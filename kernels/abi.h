/* The only thing the kernels and the Rust side share. Plain C, turned into src/engine/cuda/abi.rs by bindgen.
 *
 * One operation of one rank is one launch of a program kernel with one rl_op as its parameter. The grid has
 * `workers * lanes` blocks: block b runs worker b % workers on lane b / workers. */
#ifndef RINGLEADER_ABI_H
#define RINGLEADER_ABI_H

#include <stdint.h>

#define RL_THREADS 512u     /* threads of a block that move data */
#define RL_BLOCK 576u       /* all threads of a block: one more warp waits, another publishes */
#define RL_MAX_RANKS 16u    /* ranks of a communicator on GPUs */
#define RL_MAX_CHUNKS 128u  /* chunks of a schedule */
#define RL_MAX_WORKERS 32u  /* workers of one rank before lanes */
#define RL_MAX_WORDS 1280u  /* words of a lowered program */
#define RL_MAX_ENDS 32u     /* link ends one worker uses */
#define RL_MAX_OPERANDS 32u /* sources and sinks of one fold */
#define RL_LINE 128u        /* bytes of a cache line: each counter has its own */
#define RL_SLOT_BITS 22u    /* a counter is (epoch << RL_SLOT_BITS) + slots passed in this epoch */

/* A region is the memory that one rank keeps for one peer:
 *   header line        written by the peer at the start of each operation (rl_header)
 *   credit lines       one for each link to the peer: slots the peer has consumed; written by the peer
 *   tail lines         one for each link from the peer: slots the peer has filled; written by the peer
 *   packet boxes       two for packet16, two for packet128: what the peer sends in operations of even and odd number
 *   FIFO data          slots of the links from the peer; written by the peer
 * so a rank polls only memory of its own, and everything that crosses the wire is a write. */
#define RL_REGION_LINKS 256u /* links between a pair of ranks, each direction, lanes counted */
#define RL_REGION_CREDITS RL_LINE
#define RL_REGION_TAILS (RL_REGION_CREDITS + RL_REGION_LINKS * RL_LINE)
#define RL_REGION_BOXES (RL_REGION_TAILS + RL_REGION_LINKS * RL_LINE)

/* Packets carry their own flags, so that data needs no fence: 16 bytes of which 8 are data, or 128 of which 120 are.
 * Boxes hold packets only, ever: anything else could be mistaken for a flag. */
#define RL_EXCHANGE_THREADS 512u /* threads of a block that move packets */
#define RL_EXCHANGE_BLOCK 544u   /* all threads: one more warp keeps the books */
#define RL_BOX16_BYTES 131072u   /* bytes of one packet16 box: 64 KiB of data */
#define RL_LINE_DATA 120u        /* data bytes of a packet128 */

/* What a rank tells each peer at the start of an operation. The first two words are each written by one store and carry
 * the operation's number, so that no order between them matters. */
typedef struct rl_header {
  uint64_t ticket;  /* low half of the epoch in the upper half, rl_op.digest in the lower */
  uint64_t output;  /* low 16 bits of the epoch, then the 48 bits of rl_op.output if lent to peers, else 0 */
  uint64_t call[2]; /* the call, packed by the host: only for reports */
} rl_header;

/* Addresses of both regions of a pair, as this rank sees them. */
typedef struct rl_peer {
  uint64_t local;  /* this rank's region for the peer */
  uint64_t remote; /* the peer's region for this rank */
} rl_peer;

/* Device-resident state of one rank: what lets a captured operation be replayed. */
typedef struct rl_state {
  uint64_t epoch;        /* operations completed */
  uint64_t packet_epoch; /* the last of them that was an exchange */
  uint32_t blocks;       /* blocks of the running operation that are done */
  uint32_t failed;       /* set by the first thread that reports an error */
} rl_state;

/* Why a kernel gave up, in mapped host memory. */
#define RL_FAULT_NONE 0u
#define RL_FAULT_MISMATCH 1u
typedef struct rl_report {
  uint64_t epoch;
  uint64_t call[2];
  uint64_t peer_call[2];
  uint32_t peer;
  uint32_t fault; /* RL_FAULT_*; written last */
} rl_report;

/* A program is a sequence of 16-bit words. For each worker, at rl_op.first_word[worker]:
 *   number of link ends, then one word for each: direction bit 15 (1 = this worker produces), bits 8..14 the link's
 *     index within its ordered pair of ranks before lanes, bits 0..7 the peer's rank;
 *   number of folds, then for each: a head (bits 0..4 sources, bits 5..9 sinks, then flags), the chunk, and one word for
 *     each source, then each sink: kind in bits 8.., number of the link end in bits 0..7. */
#define RL_END_PRODUCES 0x8000u
#define RL_FOLD_FINISH 0x0400u /* the reduction is complete here */
#define RL_FOLD_DEFER 0x0800u  /* only waits when the output is lent: waiting once, at the end, is enough */
#define RL_KIND_INPUT 0u
#define RL_KIND_OUTPUT 1u
#define RL_KIND_LINK 2u
#define RL_KIND_PEER 3u

#define RL_OP_LENT 1u   /* peers may write this rank's output */
#define RL_OP_SCALE 2u  /* multiply every Input by `scale` */
#define RL_OP_DIVIDE 4u /* divide finished results by `ranks` (Avg) */
#define RL_OP_EARLY 8u  /* launched with programmatic stream serialization */

/* One operation of one rank. */
typedef struct rl_op {
  uint64_t input;       /* in message coordinates: address of the message's first element, were it all there */
  uint64_t output;      /* likewise */
  uint64_t state;       /* rl_state, device memory; 0 for a communicator of one rank */
  uint64_t abort_word;  /* uint32_t, mapped host memory: nonzero means give up */
  uint64_t report;      /* rl_report, mapped host memory */
  uint64_t call[2];     /* the call: ranks must agree */
  uint64_t scale;       /* bits of the factor: float for narrow types, double for f64, integer else */
  uint32_t rank;
  uint32_t ranks;
  uint32_t workers;
  uint32_t lanes;
  uint32_t tile;         /* elements of a tile; its bytes are a multiple of RL_LINE */
  uint32_t slot;         /* bytes between slots: tile bytes + RL_LINE */
  uint32_t depth;        /* slots of a link whose consumer has not lent its output */
  uint32_t depth_lent;   /* slots of a link whose consumer has */
  uint32_t flags;        /* RL_OP_* */
  uint32_t digest;       /* of `call`: equal for equal calls */
  uint64_t fifo; /* bytes from a region's beginning to its FIFO data */
  rl_peer peers[RL_MAX_RANKS];
  uint64_t bounds[RL_MAX_CHUNKS + 1]; /* element at which each chunk begins, and the message's end */
  uint16_t first_word[RL_MAX_WORKERS];
  uint16_t words[RL_MAX_WORDS];
} rl_op;

/* One rank's part of an exchange: a collective of one step, done with packets. Every rank sends to each peer in `sends`
 * its input, or the peer's block of it, and combines or collects what the peers in `receives` send. */
#define RL_EXCHANGE_BLOCKS 16u /* each peer gets its own block of the input (reduce_scatter) */
#define RL_EXCHANGE_GATHER 32u /* each peer's data goes to its own block of the output, uncombined (all_gather) */
#define RL_EXCHANGE_COPY 64u   /* the output is what the one peer in `receives` sends, or the input (broadcast) */
#define RL_EXCHANGE_SILENT 128u /* this rank has no output (reduce) */
typedef struct rl_exchange {
  uint64_t input;
  uint64_t output;
  uint64_t state;
  uint64_t abort_word;
  uint64_t report;
  uint64_t call[2];
  uint64_t scale;
  uint64_t count;    /* elements of a block */
  uint64_t box;      /* bytes from a region's beginning to the box of even operations */
  uint64_t box_size; /* bytes from there to the box of odd operations */
  uint64_t boxes16;  /* bytes from a region's beginning to the packet16 boxes */
  uint32_t rank;
  uint32_t ranks;
  uint32_t flags;    /* RL_OP_*, RL_EXCHANGE_* */
  uint32_t digest;
  uint32_t sends;    /* bit p: this rank sends to rank p */
  uint32_t receives; /* bit p: rank p sends to this rank */
  rl_peer peers[RL_MAX_RANKS];
} rl_exchange;

#endif
