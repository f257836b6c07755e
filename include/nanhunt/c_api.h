/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface: a training loop of any language feeds the recorder and gets the report.
 *
 *   nanhunt_recorder* recorder = NULL;
 *   nanhunt_recorder_options options = {.struct_size = sizeof options, .run_dir = "run"};
 *   if (nanhunt_recorder_open(&options, &recorder) != NANHUNT_OK) puts(nanhunt_last_error());
 *   nanhunt_record_op(recorder, &op);
 *   nanhunt_recorder_close(recorder);
 *
 * Every function returns at once with a status and never throws, prints or exits. Texts are UTF-8, ended by NUL;
 * NULL stands for "". What a call is given is borrowed until it returns. Calls on one recorder must not overlap;
 * different recorders are independent.
 *
 * Versions: structs that may grow begin with struct_size, which the caller sets to sizeof. Fields past it take their
 * defaults (0 unless stated), so a caller built against an older header keeps working with a newer library. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NANHUNT_C_API_VERSION 14
#define NANHUNT_API __attribute__((visibility("default")))

/* Version of the library that is loaded: refuse to go on when it is below NANHUNT_C_API_VERSION. */
NANHUNT_API uint32_t nanhunt_c_api_version(void);
NANHUNT_API const char* nanhunt_version(void); /* "0.1.0" */

typedef int32_t nanhunt_status;
enum {
  NANHUNT_OK = 0,
  NANHUNT_USAGE = 1,      /* an argument is wrong: nothing was done */
  NANHUNT_NOT_FOUND = 2,  /* no such file or folder, or nothing recorded in it */
  NANHUNT_UNREADABLE = 3, /* not a trace */
  /* a trace of a version that this library does not read; CUPTI or a device that cannot be used */
  NANHUNT_UNSUPPORTED = 4,
  NANHUNT_DAMAGED = 5, /* partly readable */
  NANHUNT_WRITE_FAILED = 6, /* output could not be written */
  NANHUNT_INTERNAL = 7      /* out of memory, or a mistake of ours */
};
/* What went wrong in this thread's last call that failed, where, and what to do next. Never NULL; valid until this
 * thread's next call that fails. */
NANHUNT_API const char* nanhunt_last_error(void);

/* Number formats. */
enum {
  NANHUNT_F16 = 0,
  NANHUNT_BF16 = 1,
  NANHUNT_F32 = 2,
  NANHUNT_F64 = 3,
  NANHUNT_E4M3FN = 4,
  NANHUNT_E5M2 = 5,
  NANHUNT_I64 = 6,
  NANHUNT_I32 = 7,
  NANHUNT_U8 = 8,
  NANHUNT_BOOL = 9
};
/* Where in a step an op runs. */
enum {
  NANHUNT_PHASE_DATA = 0,
  NANHUNT_PHASE_FORWARD = 1,
  NANHUNT_PHASE_LOSS = 2,
  NANHUNT_PHASE_SCALE = 3,
  NANHUNT_PHASE_BACKWARD = 4,
  NANHUNT_PHASE_COMM = 5,
  NANHUNT_PHASE_UNSCALE = 6,
  NANHUNT_PHASE_CLIP = 7,
  NANHUNT_PHASE_OPTIMIZER = 8,
  NANHUNT_PHASE_UPDATE = 9,
  NANHUNT_PHASE_VALIDATION = 10 /* a forward that nothing learns from */
};
/* How an op uses an input. */
enum {
  NANHUNT_READ = 0,
  NANHUNT_SAVED = 1,       /* kept from forward, used in backward */
  NANHUNT_OVERWRITTEN = 2, /* what the op wrote over: no data */
  NANHUNT_MASK = 3,        /* selects; its numbers are not mixed into the output */
  NANHUNT_INDEX = 4        /* indices or labels */
};
/* The part a value plays. */
enum {
  NANHUNT_LOSS = 0,
  NANHUNT_BOUNDARY_GRADIENT = 1, /* a gradient as the optimizer is about to use it */
  NANHUNT_PARAMETER = 2,
  NANHUNT_STATE = 3, /* optimizer state */
  NANHUNT_BUFFER = 4,
  NANHUNT_BATCH = 5,
  NANHUNT_LABEL = 6,
  NANHUNT_OUTPUT = 7 /* in nanhunt_health and rows alone: what a validation gave out */
};
/* What a loss scaler or a clip did. */
enum {
  NANHUNT_SCALER_CREATE = 0,
  NANHUNT_SCALER_SCALE = 1,
  NANHUNT_SCALER_UNSCALE = 2,
  NANHUNT_SCALER_CLIP = 3,
  NANHUNT_SCALER_STEP = 4,
  NANHUNT_SCALER_SKIP = 5,
  NANHUNT_SCALER_UPDATE = 6,
  NANHUNT_SCALER_SET = 7,
  NANHUNT_SCALER_REFUSED = 8,
  NANHUNT_SCALER_GAVE_UP = 9 /* an update that ended training */
};

/* One version of one tensor's contents. (storage, version) names the contents. */
typedef struct nanhunt_value {
  const void* data; /* first element, in host memory; NULL: not available */
  int32_t dtype;
  int32_t ndim;           /* 0: one element */
  const int64_t* sizes;   /* ndim of them */
  const int64_t* strides; /* in elements; NULL: row-major without gaps */
  uint64_t storage;       /* unique for an allocation, never used again (nanhunt_new_storage); 0: unknown */
  uint32_t version;       /* grows by 1 with each write in place */
  int64_t offset;         /* in elements from the start of the storage */
} nanhunt_value;

typedef struct nanhunt_input {
  const char* slot; /* the argument's name: "self", "mat1" */
  nanhunt_value value;
  int32_t role;
} nanhunt_input;

typedef struct nanhunt_output {
  const char* slot;
  nanhunt_value value;
} nanhunt_output;

typedef struct nanhunt_scalar {
  const char* name; /* "alpha", "eps" */
  double value;
} nanhunt_scalar;

typedef struct nanhunt_op {
  uint32_t struct_size;
  uint32_t step, micro_batch; /* from 0 */
  int32_t phase;
  const char* module; /* dotted path, "<loss>", or the parameter's path for optimizer ops */
  const char* op;     /* dispatcher name without prefix: "addmm", "sqrt_backward" */
  const char* call_site;
  int32_t compute_dtype; /* in which the kernel computes before it stores */
  const nanhunt_input* inputs;
  size_t input_count;
  const nanhunt_output* outputs;
  size_t output_count;
  const nanhunt_scalar* scalars;
  size_t scalar_count;
} nanhunt_op;

typedef struct nanhunt_mark {
  uint32_t struct_size;
  uint32_t step, micro_batch;
  int32_t kind;
  const char* path; /* "fc1.weight", "loss", "images" */
  nanhunt_value value;
} nanhunt_mark;

typedef struct nanhunt_scaler_event {
  uint32_t struct_size;
  uint32_t step, micro_batch;
  int32_t action;
  uint32_t optimizer; /* numbered in order of first use */
  int32_t found_inf;
  double scale;           /* after the action */
  int64_t growth_tracker; /* after the action */
  double total_norm, max_norm; /* of a clip */
  int32_t dynamic;             /* of create, and the three below */
  double growth_factor, backoff_factor;
  int64_t growth_interval;
  const char* text; /* create: the family, "torch.amp"; refused: why */
} nanhunt_scaler_event;

/* How a step ended. */
enum {
  NANHUNT_ENDED_BY_OPTIMIZER = 0,    /* it passed its boundary; `skipped` says whether a scaler held the optimizer back */
  NANHUNT_ENDED_BY_NEXT_FORWARD = 1, /* the next forward began: the program skipped this step */
  NANHUNT_ENDED_BY_EXCEPTION = 2,    /* one left the loop */
  NANHUNT_ENDED_BY_EXIT = 3,         /* the program ended itself */
  NANHUNT_ENDED = 4,                 /* the loop or the process ended, or the watch */
  NANHUNT_ENDED_BY_FORWARD = 5       /* nothing was trained, and the next model's call began: each one is a step */
};
typedef struct nanhunt_step {
  uint32_t struct_size;
  uint32_t step;
  int32_t skipped; /* the scaler held the optimizer back */
  double loss, lr, scale; /* NaN: not known (a NaN loss is a NaN loss); a scale of 0 counts as 0 */
  int32_t ending;         /* NANHUNT_ENDED_BY_OPTIMIZER, ... */
  const char* message;    /* what the program said of it; NULL: nothing */
  int64_t watch_ns;       /* of the training thread's time since the last step, spent on watching; 0: not known */
} nanhunt_step;

typedef struct nanhunt_recorder_options {
  uint32_t struct_size;
  const char* run_dir;   /* made when missing; an existing one gets a new attempt */
  const char* framework; /* "my-engine 1.2" */
  const char* device;    /* "cpu", "cuda" */
  uint32_t rank;
  uint32_t world_size;  /* 0: 1 */
  int32_t drop_on_full; /* 0: wait for the writer; 1: drop routine rows and count them */
  int32_t flush_ms;     /* 0: 1000 */
  size_t queue_bytes;   /* 0: 64 MiB */
  const char* level;    /* "live", "ops", "steps"; NULL: "ops" */
  int32_t trust_inputs; /* 1: contents that are read are not compared with their record, which spares a read of each */
  uint64_t max_trace_bytes; /* 0: no limit; else 4 MiB at least: retention as in include/nanhunt/trace.h */
  const char* details;  /* JSON object, NULL: none: "command", "dtypes" (lists of texts), "options", "packages" (texts by name),
                           "commit", "tree" ("clean", "changed") of the repository of the program, "run" (a text that is
                           the same for all processes of one run that are one rank) */
} nanhunt_recorder_options;

typedef struct nanhunt_counters {
  uint32_t struct_size;
  uint64_t ops, values, marks;
  uint64_t dropped_ops, dropped_values, dropped_other;
  uint64_t write_errors;
} nanhunt_counters;

typedef struct nanhunt_recorder nanhunt_recorder;

NANHUNT_API nanhunt_status nanhunt_recorder_open(const nanhunt_recorder_options* options, nanhunt_recorder** recorder);
NANHUNT_API nanhunt_status nanhunt_record_op(nanhunt_recorder* recorder, const nanhunt_op* op);
NANHUNT_API nanhunt_status nanhunt_record_mark(nanhunt_recorder* recorder, const nanhunt_mark* mark);
/* Row i of the batch is sample_ids[i] of the data set. */
NANHUNT_API nanhunt_status nanhunt_record_batch(nanhunt_recorder* recorder, uint32_t step, uint32_t micro_batch,
                                                const int64_t* sample_ids, size_t count);
NANHUNT_API nanhunt_status nanhunt_record_scaler(nanhunt_recorder* recorder, const nanhunt_scaler_event* event);
NANHUNT_API nanhunt_status nanhunt_record_step(nanhunt_recorder* recorder, const nanhunt_step* step);
NANHUNT_API nanhunt_status nanhunt_record_release(nanhunt_recorder* recorder, uint64_t storage);
/* A storage number that no other call of this process has returned. */
NANHUNT_API uint64_t nanhunt_new_storage(void);
NANHUNT_API nanhunt_status nanhunt_recorder_counters(const nanhunt_recorder* recorder, nanhunt_counters* counters);
/* Everything recorded so far is in the file when it returns. */
NANHUNT_API nanhunt_status nanhunt_recorder_flush(nanhunt_recorder* recorder);
/* From here on a SIGTERM or SIGHUP for which the program has no handler ends it as before, within two seconds, and what is
 * recorded reaches the file first. A handler that it sets later takes the place of ours. One recorder of a process: the
 * one for which this was called last. */
NANHUNT_API nanhunt_status nanhunt_recorder_flush_at_signals(nanhunt_recorder* recorder);
/* Ends the trace and frees the recorder, also when it fails. NULL does nothing. */
NANHUNT_API nanhunt_status nanhunt_recorder_close(nanhunt_recorder* recorder);

/* What a run amounts to. */
enum {
  NANHUNT_CLEAN = 0,
  NANHUNT_CALIBRATING = 1,
  NANHUNT_WARNING = 2,
  NANHUNT_FAULT = 3,
  NANHUNT_INCONCLUSIVE = 4
};
/* The answer: ten lines of text. The card: a piece of HTML for a notebook. */
enum { NANHUNT_TEXT = 0, NANHUNT_JSON = 1, NANHUNT_HTML = 2, NANHUNT_ANSWER = 3, NANHUNT_CARD = 4 };

/* Reads the newest attempt of each rank under `run` (also one attempt folder or .nht file) and says what it amounts to.
 */
NANHUNT_API nanhunt_status nanhunt_check(const char* run, int32_t* verdict);
/* The same as a report. Of a run that a recorder of this process is open for it says that it is still going; whoever
 * wants all that was recorded so far calls nanhunt_recorder_flush() before. *text is ended by NUL, *size does not count
 * it; give it back to nanhunt_free. */
NANHUNT_API nanhunt_status nanhunt_report(const char* run, int32_t format, char** text, size_t* size);
NANHUNT_API void nanhunt_free(char* text);

#ifdef __cplusplus
}
#endif
