/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface for adapters: whatever watches a framework from another language (hooks/torch does, by ctypes).
 * Names, layouts and calls are told once and get a number; after that an op is a row of integers and one call.
 * It also lends out what adapters need of the library's own arithmetic: reading tensors.
 *
 * As in c_api.h: nothing throws, prints or exits; calls on one recorder must not overlap; what a call is given is
 * borrowed until it returns. Data is in host memory, but for values of rows that name a stream
 * (nanhunt_device_stream). */
#pragma once

#include "nanhunt/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers for texts, layouts and calls: from 0, the same for the same content, good while the recorder is open.
 * -1: refused, see nanhunt_last_error(). Text number 0 is "". */
NANHUNT_API int64_t nanhunt_intern_text(nanhunt_recorder* recorder, const char* text);
/* strides in elements; NULL: row-major without gaps. */
NANHUNT_API int64_t nanhunt_intern_layout(nanhunt_recorder* recorder, int32_t dtype, int32_t ndim, const int64_t* sizes,
                                          const int64_t* strides);
typedef struct nanhunt_call {
  uint32_t struct_size;
  int32_t compute_dtype;          /* in which the kernel computes before it stores */
  const char* op;                 /* dispatcher name without prefix: "addmm" */
  const char* const* input_slots; /* input_count names; one may occur more than once */
  const int32_t* input_roles;     /* NANHUNT_READ, ...; NULL: all are read */
  size_t input_count;
  const char* const* output_slots;
  size_t output_count;
  const char* const* scalar_names;
  size_t scalar_count;
} nanhunt_call;
NANHUNT_API int64_t nanhunt_intern_call(nanhunt_recorder* recorder, const nanhunt_call* call);

/* Rows of 64-bit words, one after the other. A value is four words:
 *   data (address; 0: not available; NANHUNT_WAS_FINITE: the same, and all numbers were finite), identity, offset (in
 *   elements from the start of the storage), layout number
 * where identity = storage << 24 | version; 0: unknown. A version that would pass 2^24 - 1 needs a new storage number.
 * With a stream's number in the layout word's upper half (NANHUNT_ON_STREAM) the address is one of its device.
 *   op       NANHUNT_ROW_OP, call, step, micro_batch, phase, module text, call site text,
 *            inputs, outputs (as many values as the call has), scalars (bits of a double each)
 *   mark     NANHUNT_ROW_MARK, kind, step, micro_batch, path text, value
 *   release  NANHUNT_ROW_RELEASE, storage
 *   check    NANHUNT_ROW_CHECK, step, value: contents are compared with their record, where there is one. With
 *            trust_inputs: contents of a device alone, with what the op that made them, the last mark or the last
 *            check of them saw; a change is told where they are not finite now, and counted in a note where they are
 * Rows up to the first wrong one are recorded; that one and what follows are refused (NANHUNT_USAGE). */
#define NANHUNT_WAS_FINITE INT64_C(-1)
enum { NANHUNT_ROW_OP = 1, NANHUNT_ROW_MARK = 2, NANHUNT_ROW_RELEASE = 3, NANHUNT_ROW_CHECK = 4 };
NANHUNT_API nanhunt_status nanhunt_record_rows(nanhunt_recorder* recorder, const int64_t* words, size_t count);
/* Ops whose outputs were not finite so far. */
NANHUNT_API uint64_t nanhunt_recorder_anomalies(const nanhunt_recorder* recorder);
/* Of these, the ones from op `seq` on (among the newest 16384). Ops whose contents are still being read on a device,
 * and those after them, are not known before they have come, or after nanhunt_device_settle(). */
NANHUNT_API uint64_t nanhunt_recorder_bad_since(const nanhunt_recorder* recorder, uint64_t seq);
/* Ops so far at which badness began: their outputs are not finite in a way in which no input was. */
NANHUNT_API uint64_t nanhunt_recorder_origins(const nanhunt_recorder* recorder);
/* Of these, the ones in phases optimizer and update: what they wrote is there in the next step as well. */
NANHUNT_API uint64_t nanhunt_recorder_origins_that_last(const nanhunt_recorder* recorder);
/* The attempt's folder; valid while the recorder is open. */
NANHUNT_API const char* nanhunt_recorder_folder(const nanhunt_recorder* recorder);

/* Contents that only a device can read. Values of op and mark rows, of collectives and of nanhunt_record_changed() may
 * lie in memory of the device: they are read there, by a kernel behind what is on the stream when the call is made,
 * without a wait. So the caller names the stream on which an op of its own could read them now, and keeps their memory
 * until then. What is learnt comes to the host with one copy a step (nanhunt_record_step), and is looked for in later
 * calls; only nanhunt_device_settle(), nanhunt_recorder_flush() and nanhunt_recorder_close() wait for it. Rows that
 * wait for it are held, in their order. Other functions do not read there. Contents that were read already, under the same identity, are
 * compared there with what they were, and read again where they are not that any more; with trust_inputs, what an op
 * takes, or gives back as a view of the same elements, is not read again at all, unless a check or
 * nanhunt_record_changed() named other parts of its storage since. Of an op's outputs that are floating-point numbers,
 * but not of fp8, elements are looked at as well: where the first bad one is and what met in it, values lost to zero,
 * updates that change nothing, and histograms where bad numbers begin. What does not come is unknown, counted and
 * noted, and nobody is blamed for it. */
#define NANHUNT_ON_STREAM(layout, stream) ((int64_t)(layout) | (int64_t)(stream) << 32)
/* `device`: as cudaGetDevice() counts; `stream`: a cudaStream_t, which lives as long as the recorder. A number from 1,
 * the same for the same stream. -1: nothing can be read there (a build without CUDA, no driver or device, no memory,
 * code for another architecture, over 16 streams, a graph being captured on it now); nanhunt_last_error() says why in
 * one line, and the caller copies to the host as before. For memory and kernels it may wait for the device, once for
 * each stream. While a graph is captured on a stream nothing is read on it, which is noted. The calling thread's
 * current device and last error of CUDA stay as they are. */
NANHUNT_API int64_t nanhunt_device_stream(nanhunt_recorder* recorder, int32_t device, uint64_t stream);
/* Whether single elements of what ops make are looked at, from here on: where bad ones are and what met there, what was
 * lost. It is so unless this says no; then many ops whose rows come in one call are read by one launch. */
NANHUNT_API nanhunt_status nanhunt_device_read_elements(nanhunt_recorder* recorder, int32_t on);
/* Waits for what is being read, so that rows and origins so far are known. Where nothing is, it waits for nothing; nor
 * does it for a stream on which a graph is captured. */
NANHUNT_API nanhunt_status nanhunt_device_settle(nanhunt_recorder* recorder);
/* Tensors of a device that nobody may ask after, as those of a step that turns out to be healthy: whether the first `made`
 * are finite; where one is not, statistics of all. None made: statistics in any case. Two launches for up to 150, behind
 * what is on their stream, which is the same for all. Where no elements are missing between them their place in memory
 * counts, not their strides: no first bad one is known then. `values`: four words each. A number from 1; 0: they are not
 * read (a graph is captured, or there is no room). */
NANHUNT_API uint64_t nanhunt_device_look(nanhunt_recorder* recorder, const int64_t* values, size_t made, size_t count);
/* What was looked at so far begins its way to the host: with the end of a step. */
NANHUNT_API nanhunt_status nanhunt_device_end_looks(nanhunt_recorder* recorder);
/* 1: it has come, and `bits` has what is not finite in each (NANHUNT_HAS_NAN, ...; NANHUNT_HAS_NOT_SAID: not known);
 * 0: not yet; -1: it will not. Never waits. */
enum { NANHUNT_HAS_NOT_SAID = 128 };
NANHUNT_API int32_t nanhunt_device_looked(nanhunt_recorder* recorder, uint64_t look, uint8_t* bits, size_t count);
/* Its results are not asked after any more. Until then a row's value may name one as its contents: NANHUNT_LOOKED_AT as
 * data, NANHUNT_ON_STREAM(layout, NANHUNT_LOOKS) as layout. */
NANHUNT_API nanhunt_status nanhunt_device_forget_look(nanhunt_recorder* recorder, uint64_t look);
#define NANHUNT_LOOKS 0x7fffffff
#define NANHUNT_LOOKED_AT(look, index) ((int64_t)(look) << 16 | (int64_t)(index))
typedef struct nanhunt_device_counts { /* of all streams together */
  uint32_t struct_size;
  uint32_t streams;
  uint64_t asked;    /* tensors to be read, outputs whose elements are looked at, ops whose updates are */
  uint64_t told;     /* of those, what became known */
  uint64_t lost;     /* that will not */
  uint64_t captured; /* not read, for a graph was being captured */
  uint64_t launches, copies;
  uint64_t waits;    /* of the host for a device */
} nanhunt_device_counts;
NANHUNT_API nanhunt_status nanhunt_device_counters(const nanhunt_recorder* recorder, nanhunt_device_counts* counts);

/* What was found in one step: include/nanhunt/event.h has the meaning of each field, here and below. */
typedef struct nanhunt_health {
  uint32_t struct_size;
  uint32_t step;
  uint32_t bad; /* 1 << NANHUNT_LOSS, ... */
  uint32_t bad_tensors;
  const char* first_bad;
  double gradient_norm, weight_norm; /* NaN: not known */
  uint64_t weight_checksum;          /* 0: not read */
} nanhunt_health;
NANHUNT_API nanhunt_status nanhunt_record_health(nanhunt_recorder* recorder, const nanhunt_health* health);

/* Norm and largest magnitude of a gradient (NANHUNT_BOUNDARY_GRADIENT) or parameter (NANHUNT_PARAMETER). */
NANHUNT_API nanhunt_status nanhunt_record_norm(nanhunt_recorder* recorder, uint32_t step, int32_t kind,
                                               const char* path, double norm, double amax);

/* A bad step whose operations were not heard. `why`: a sentence. */
NANHUNT_API nanhunt_status nanhunt_record_not_heard(nanhunt_recorder* recorder, uint32_t step, const char* why);

/* Contents that nothing watched wrote. `value`: the four words. since_seq: all ones: unknown. */
NANHUNT_API nanhunt_status nanhunt_record_changed(nanhunt_recorder* recorder, uint32_t step, const int64_t* value,
                                                  uint64_t since_seq, uint32_t since_step, int32_t opaque);

/* How an op was computed again: ProbeEvent. `seq`: the op's, from nanhunt_recorder_next_seq(). */
typedef struct nanhunt_probe {
  uint32_t struct_size;
  uint32_t step;
  uint64_t seq;
  int32_t mode, dtype;
  uint32_t ops;
  int32_t ran;
  int64_t nan, pos_inf, neg_inf, flat_index;
  double number;
  const char* text;
} nanhunt_probe;
NANHUNT_API nanhunt_status nanhunt_record_probe(nanhunt_recorder* recorder, const nanhunt_probe* probe);
NANHUNT_API nanhunt_status nanhunt_record_capture(nanhunt_recorder* recorder, uint64_t seq, uint32_t step,
                                                  const char* file, uint64_t bytes);
/* A call in which ranks exchange tensors: CollectiveEvent in event.h. Reported before the call runs, while the shares can
 * be read; its op row, phase NANHUNT_PHASE_COMM, follows when the result can be. */
enum {
  NANHUNT_ALLREDUCE = 0, NANHUNT_BROADCAST, NANHUNT_ALLGATHER, NANHUNT_REDUCE_SCATTER, NANHUNT_ALLTOALL, NANHUNT_REDUCE,
  NANHUNT_SCATTER, NANHUNT_GATHER, NANHUNT_SEND, NANHUNT_RECV, NANHUNT_BARRIER
};
enum { NANHUNT_NO_REDUCTION = 0, NANHUNT_SUM, NANHUNT_AVG, NANHUNT_MIN, NANHUNT_MAX, NANHUNT_PRODUCT };
typedef struct nanhunt_collective {
  uint32_t struct_size;
  uint32_t step;
  uint64_t seq;         /* of its op row: nanhunt_recorder_next_seq() when that is the next one; all ones: has none */
  const char* group;    /* name of the process group, the same on all its ranks */
  uint64_t call;        /* from 0: all collectives of this rank in the group are counted together, the sends to one peer
                           and the receives from one peer each for themselves */
  int32_t kind;         /* NANHUNT_ALLREDUCE, ... */
  int32_t reduction;    /* NANHUNT_SUM, ... */
  int32_t peer;         /* global rank of the root, or of the other end of a send or receive; -1: none */
  const uint32_t* ranks; /* of the group, as global ranks */
  size_t rank_count;
  const int64_t* shares; /* what this rank gives: four words each, as in rows; the op names them again as inputs */
  size_t share_count;
} nanhunt_collective;
NANHUNT_API nanhunt_status nanhunt_record_collective(nanhunt_recorder* recorder, const nanhunt_collective* collective);
/* A step of which it is not known yet whether anybody wants its ops. From NANHUNT_HOLD on rows stay in memory;
 * NANHUNT_KEEP hands them on to the trace, NANHUNT_DROP forgets what names values and ops, and both end the hold. What
 * says how steps went (steps, health, norms, scaler, notes) is kept in any case. While it is held all ops must be told:
 * what an op takes is trusted as under trust_inputs. At most 64 MiB are held: past that rows
 * of ops without bad numbers go, counted, and what is left goes to the trace. A flush keeps what is held. */
enum { NANHUNT_HOLD = 0, NANHUNT_KEEP = 1, NANHUNT_DROP = 2, NANHUNT_LATER = 3 };
NANHUNT_API nanhunt_status nanhunt_recorder_hold(nanhunt_recorder* recorder, int32_t action);
/* NANHUNT_LATER ends a hold whose contents are still being read on a device: what comes waits behind it. Once the oldest
 * such hold is due (1; 0: not yet; asking never waits) its origins are counted, and it is kept or dropped. What is told
 * between two calls of nanhunt_recorder_add_to_hold(), on and off, belongs to it. One of which nothing is heard for
 * eight steps is kept. */
NANHUNT_API int32_t nanhunt_recorder_hold_is_due(nanhunt_recorder* recorder);
NANHUNT_API nanhunt_status nanhunt_recorder_add_to_hold(nanhunt_recorder* recorder, int32_t on);
NANHUNT_API nanhunt_status nanhunt_recorder_decide_hold(nanhunt_recorder* recorder, int32_t action);
/* The number that the next op row will get. */
NANHUNT_API uint64_t nanhunt_recorder_next_seq(const nanhunt_recorder* recorder);

/* What was not watched, and how often so far: "sparse tensors", 12. The last count told of a text is the one that
 * counts; the report lists them under coverage. */
NANHUNT_API nanhunt_status nanhunt_record_note(nanhunt_recorder* recorder, uint32_t step, const char* text,
                                               uint64_t count);

/* The program's own code when an op was first called from a site (the text that rows give as call site): one call for
 * each function on the stack, depth 0 first, being the line that called the op. */
typedef struct nanhunt_frame {
  uint32_t struct_size;
  uint32_t depth;
  const char* site;
  const char* file;
  const char* function;
  const char* code;    /* lines of the source around it, joined by line feeds; NULL: not to be had */
  uint32_t line;       /* counted from 1; 0: not known */
  uint32_t first_line; /* of code */
} nanhunt_frame;
NANHUNT_API nanhunt_status nanhunt_record_frame(nanhunt_recorder* recorder, const nanhunt_frame* frame);

/* How the program had set something up, which no op shows: told when it is first seen. The texts may be NULL. */
enum {
  NANHUNT_SETUP_MODULE = 0,               /* path: of a module; text: its class */
  NANHUNT_SETUP_AUTOCAST = 1,             /* a model ran under autocast to dtype with gradients on */
  NANHUNT_SETUP_BACKWARD_IN_AUTOCAST = 2, /* backward began while autocast to dtype was on */
  NANHUNT_SETUP_NARROW_PARAMETERS = 3,    /* a model that ran with gradients on holds `number` parameters in dtype;
                                             path: the first of them */
  NANHUNT_SETUP_FOREIGN_PARAMETERS = 4,   /* none of the `number` parameters of an optimizer has a gradient or is the
                                             models' own, whose parameters have gradients and are in no optimizer;
                                             text: its class */
  NANHUNT_SETUP_WIDE_COLUMN = 5,          /* of what a model is given, text ("column 7 of input 0") reaches `number`
                                             times as far as the median column; path: the model */
  NANHUNT_SETUP_COORDINATE = 6,           /* path: a dimension of the ranks ("data"); number: this rank's place there */
  NANHUNT_SETUP_ACCELERATOR = 7,          /* path: the id of the card that this rank uses; text: its name */
  NANHUNT_SETUP_REPLICAS = 8              /* ranks that hold the same parameters; path: which; number: the lowest; text: how many */
};
typedef struct nanhunt_setup {
  uint32_t struct_size;
  uint32_t step;
  int32_t fact;
  int32_t dtype;
  const char* path;
  const char* site;
  const char* text;
  double number;
} nanhunt_setup;
NANHUNT_API nanhunt_status nanhunt_record_setup(nanhunt_recorder* recorder, const nanhunt_setup* setup);

/* Which kernels a GPU ran for an op, through NVIDIA's CUPTI: hooks/cupti/README.md. Nothing here launches, waits for a
 * device or fails a run. CUPTI is loaded by attach and by nothing else; with one recorder of a process at a time.
 * push, pop, push_own, pop_own and place may be called from any thread, also while another call on the recorder runs,
 * be it attach or detach, but not once it is being closed. Where nothing is attached, and in a forked child, they do
 * nothing. */
typedef struct nanhunt_kernel_options {
  uint32_t struct_size;
  int32_t flush_ms;    /* how often CUPTI is asked for what is complete, by a thread of the library; 0: 250 */
  const char* library; /* of CUPTI: a path or soname; NULL: one the process holds, else the toolkit's */
  const char* driver;  /* NULL: libcuda.so.1 */
} nanhunt_kernel_options;
/* options NULL: all as they are. Before the CUDA context is made, where that can be had: later is noted.
 * NANHUNT_NOT_FOUND or NANHUNT_UNSUPPORTED: kernels are not watched; nanhunt_last_error() says why in one line (who
 * holds CUPTI already), a note under coverage too, and the run goes on without. */
NANHUNT_API nanhunt_status nanhunt_kernels_attach(nanhunt_recorder* recorder, const nanhunt_kernel_options* options);
/* What this thread launches from here to pop belongs to one op; ops nest, the innermost counts. 0: not watched. */
NANHUNT_API uint64_t nanhunt_kernels_push(nanhunt_recorder* recorder);
/* `seq`: of the op's row, or of the first of its rows, which are recorded by now and the newest; all ones: it has none.
 * Of several rows the kernels go to the first whose result is not finite, also where that is learnt later, else to the
 * first. */
NANHUNT_API void nanhunt_kernels_pop(nanhunt_recorder* recorder, uint64_t ticket, uint64_t seq, uint32_t step);
/* Around what nanhunt itself launches. */
NANHUNT_API void nanhunt_kernels_push_own(nanhunt_recorder* recorder);
NANHUNT_API void nanhunt_kernels_pop_own(nanhunt_recorder* recorder);
/* Where the thread is, for what it launches outside of any op: a NANHUNT_PHASE_. */
NANHUNT_API void nanhunt_kernels_place(nanhunt_recorder* recorder, uint32_t step, int32_t phase);
/* Once a step: records what has become known. Most often that is nothing. */
NANHUNT_API nanhunt_status nanhunt_kernels_drain(nanhunt_recorder* recorder);
/* Records all that there still is (the caller has waited for the device if it wants all of it, this does not), notes
 * what was lost, and leaves nothing of CUPTI behind. Closing the recorder does the same. It may be attached again. */
NANHUNT_API nanhunt_status nanhunt_kernels_detach(nanhunt_recorder* recorder);
typedef struct nanhunt_kernel_counts { /* of the last attach */
  uint32_t struct_size;
  uint32_t version;     /* of CUPTI, as cuptiGetVersion says; 0: never attached */
  uint64_t kernels;     /* recorded */
  uint64_t own, without_op;
  uint64_t lost;        /* records that CUPTI dropped, buffers refused or given up, records given up to bound memory */
  uint64_t tags_failed; /* pushes that CUPTI refused */
  int32_t late;         /* a CUDA context was there before */
  int32_t finalized;    /* detached to the last bit */
} nanhunt_kernel_counts;
NANHUNT_API nanhunt_status nanhunt_kernel_counters(const nanhunt_recorder* recorder, nanhunt_kernel_counts* counts);

/* Reading tensors. `values`: data address and layout number of each. */
enum { NANHUNT_READ_NORM = 1, NANHUNT_READ_CHECKSUM = 2 };
enum { NANHUNT_HAS_NAN = 1, NANHUNT_HAS_POS_INF = 2, NANHUNT_HAS_NEG_INF = 4 };
typedef struct nanhunt_reading {
  double norm, amax;   /* over the finite elements; norm is NaN or infinite where an element is */
  uint64_t checksum;   /* 0 unless NANHUNT_READ_CHECKSUM was asked for */
  uint32_t bad;        /* NANHUNT_HAS_NAN | ... */
  uint32_t reserved;
} nanhunt_reading;
/* One pass over each. *bad gets the number of tensors that are not finite; integers never are. */
NANHUNT_API nanhunt_status nanhunt_read(nanhunt_recorder* recorder, const int64_t* values, size_t count, int32_t what,
                                        nanhunt_reading* readings, size_t* bad);

/* TensorStats of one tensor, at level sums (include/nanhunt/tensor_stats.h). */
typedef struct nanhunt_stats {
  uint32_t struct_size;
  int64_t numel, nan, pos_inf, neg_inf, zero, subnormal, first_bad; /* first_bad: row-major; -1: none */
  double min, max, amax, amin_nonzero, sum, sum_sq;                 /* NaN: there are none */
} nanhunt_stats;
NANHUNT_API nanhunt_status nanhunt_tensor_stats(const nanhunt_value* value, nanhunt_stats* stats);

/* Of each tensor of a look that has come (nanhunt_device_look()), for which statistics were taken; others have numel -1. */
NANHUNT_API nanhunt_status nanhunt_device_look_stats(nanhunt_recorder* recorder, uint64_t look, nanhunt_stats* stats,
                                                     size_t count);

/* The judge of steps: src/hunt/step_judge.h has the terms. Not for several threads at once. Functions that return int32_t
 * return -1 where an argument is wrong. */
typedef struct nanhunt_step_judge nanhunt_step_judge;
NANHUNT_API nanhunt_step_judge* nanhunt_step_judge_new(uint32_t max_taken, uint32_t distance); /* 0: 10 and 100 */
NANHUNT_API void nanhunt_step_judge_free(nanhunt_step_judge* judge);
/* After nanhunt_recorder_flush_at_signals(): the recorder's steps are this judge's, which lives longer. Where no step
 * has begun when a signal ends the process, the attempt is removed. `ends_between`: a signal is how the process ends
 * once its work is done (a worker of a pool): between two steps its trace has a regular end then. */
NANHUNT_API nanhunt_status nanhunt_recorder_judge_at_signals(nanhunt_recorder* recorder,
                                                             const nanhunt_step_judge* judge, int32_t ends_between);

/* How far the step at hand has come; nanhunt_step_pass returns the furthest. */
enum {
  NANHUNT_STEP_BEGUN = 0, NANHUNT_STEP_SUSPECT, NANHUNT_STEP_FORWARD, NANHUNT_STEP_SCALE_APPLIED, NANHUNT_STEP_LOSS,
  NANHUNT_STEP_BACKWARD, NANHUNT_STEP_UNSCALED, NANHUNT_STEP_CLIPPED, NANHUNT_STEP_RAISED, NANHUNT_STEP_OPTIMIZER,
  NANHUNT_STEP_UPDATED, NANHUNT_STEP_ENDED, NANHUNT_STEP_GIVEN_UP, NANHUNT_STEP_EXCEPTION, NANHUNT_STEP_EXITED
};
NANHUNT_API int32_t nanhunt_step_is_open(nanhunt_step_judge* judge);
NANHUNT_API int32_t nanhunt_step_restart(nanhunt_step_judge* judge); /* what ran so far was no training */
NANHUNT_API int32_t nanhunt_step_pass(nanhunt_step_judge* judge, int32_t state);
/* Bits: a backward has begun, and ended; gradients are multiplied by the scale; as many models as usual were called;
 * fewer backwards have ended than in each of the last two steps: more batches come; more models were called for each
 * backward than in one of them: a batch had none. */
enum { NANHUNT_STEP_TRAINED = 1, NANHUNT_STEP_HAS_GRADIENTS = 2, NANHUNT_STEP_SCALED = 4, NANHUNT_STEP_USUAL = 8,
       NANHUNT_STEP_AMID = 16, NANHUNT_STEP_LEFT_BATCH_OUT = 32 };
NANHUNT_API int32_t nanhunt_step_facts(nanhunt_step_judge* judge);
/* Whether gradients are read now: 0 no, 1 yes, NANHUNT_STEP_READS_AGAIN. */
enum { NANHUNT_STEP_READS_AGAIN = 2 };
NANHUNT_API int32_t nanhunt_step_reads_gradients(nanhunt_step_judge* judge, uint32_t step, int32_t last, int32_t written);
/* Whether the program has left the step without an optimizer: 0 no, 1 yes, NANHUNT_STEP_GIVEN_UP_IF_BAD_NUMBER. */
enum { NANHUNT_STEP_GIVEN_UP_IF_BAD_NUMBER = 2 };
NANHUNT_API int32_t nanhunt_step_gives_up(nanhunt_step_judge* judge);

/* Something is bad. `kind`: as of a mark; `older`: it was before the step began. These return the bits of a health row. */
NANHUNT_API int32_t nanhunt_step_note(nanhunt_step_judge* judge, uint32_t step, int32_t kind, int32_t older, const char* path);
/* ... gradients were, before the first backward. */
NANHUNT_API int32_t nanhunt_step_note_kept(nanhunt_step_judge* judge, uint32_t step);
NANHUNT_API int32_t nanhunt_step_bad(nanhunt_step_judge* judge, uint32_t step);
NANHUNT_API int32_t nanhunt_step_boundary(nanhunt_step_judge* judge, uint32_t step); /* gradients were read */

/* What follows of what is bad in it: 0 nothing, 1 it is told without its operations, NANHUNT_STEP_TAKEN: they are wanted.
 * `held_back`: a dynamic loss scaler skips the optimizer where gradients are bad. */
enum { NANHUNT_STEP_TAKEN = 2 };
NANHUNT_API int32_t nanhunt_step_judge_bad(nanhunt_step_judge* judge, uint32_t step, int32_t held_back);
NANHUNT_API int32_t nanhunt_step_judge_harm(nanhunt_step_judge* judge, uint32_t step); /* the same of one that does harm */
/* Operations that were held in memory: whether they are kept, and what becomes of them: 0 they are dropped, 1 they show
 * a healthy step, NANHUNT_STEP_KEPT. */
enum { NANHUNT_STEP_KEPT = 2 };
NANHUNT_API int32_t nanhunt_step_keeps(nanhunt_step_judge* judge, uint32_t step, int32_t left_bad, int32_t swallowed);
NANHUNT_API int32_t nanhunt_step_end_held(nanhunt_step_judge* judge, uint32_t step, int32_t kept, int32_t narrow);
NANHUNT_API int32_t nanhunt_step_shows(nanhunt_step_judge* judge, uint32_t step, int32_t narrow);
/* A bad step had its operations dropped, since this was asked last. */
NANHUNT_API int32_t nanhunt_step_was_left_out(nanhunt_step_judge* judge);

/* The step at hand is over, or was at its last boundary (`overran`). `ending`: as of a step's row. */
NANHUNT_API int32_t nanhunt_step_end(nanhunt_step_judge* judge, int32_t ending, int32_t overran);
NANHUNT_API int32_t nanhunt_step_carry_over(nanhunt_step_judge* judge, uint32_t step); /* what was found since, to the next */
/* Writes its row of health. `whole`: with what was carried over as well; `read`: all of it was read, so that a row without
 * bits is true. `weight_checksum`: as in nanhunt_health. Returns the row's bits. */
NANHUNT_API int32_t nanhunt_step_record(nanhunt_step_judge* judge, nanhunt_recorder* recorder, uint32_t step, int32_t whole,
                                        int32_t read, double gradient_norm, uint64_t weight_checksum);

/* Has digest.json (src/fleet/FORMAT.md) written beside the trace, of what was recorded so far, by a thread of its own:
 * nothing waits for it. From the first call on one is written every few minutes as well, and the last when the recorder
 * is closed. None is made of more than 64 MiB of trace: `nanhunt fleet` makes it later. */
NANHUNT_API nanhunt_status nanhunt_recorder_write_digest(nanhunt_recorder* recorder);

/* Starts a program and leaves it to itself: it is no child of this process, which gets no SIGCHLD and whose wait() never
 * sees it. `command` and `environment` ("NAME=value") end with NULL; `input` is what it reads from stdin; what it prints
 * goes nowhere. Returns when it runs. */
NANHUNT_API nanhunt_status nanhunt_start_detached(const char* const* command, const char* const* environment,
                                                  const char* input, size_t input_bytes);

/* The records of one kind of a saved run, of the newest attempt of each rank, as an Arrow stream: names resolved, read
 * as the caller asks for more. `stream` is a struct ArrowArrayStream of the Arrow C stream interface, which is filled
 * here and released by the caller. A damaged trace gives what can be read of it. */
struct ArrowArrayStream;
NANHUNT_API nanhunt_status nanhunt_records(const char* run, const char* kind, struct ArrowArrayStream* stream);
/* The kinds there are, with spaces between: "ops values marks ...". "bad_ops": of ops that gave a number that is not
 * finite, one row each, flat. */
NANHUNT_API const char* nanhunt_record_kinds(void);

/* The same of several kinds ("steps health bad_ops") in one reading of the trace: `rows` is called in this thread with
 * each batch, of a kind without records with an empty one, and owns what it is given. `kind` counts the words of `kinds`.
 * Other than 0 from it ends the reading (NANHUNT_USAGE). */
struct ArrowSchema;
struct ArrowArray;
typedef int32_t (*nanhunt_rows_fn)(void* user, int32_t kind, struct ArrowSchema* schema, struct ArrowArray* rows);
NANHUNT_API nanhunt_status nanhunt_read_records(const char* run, const char* kinds, nanhunt_rows_fn rows, void* user);

#ifdef __cplusplus
}
#endif
