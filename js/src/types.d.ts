/**
 * The input of a plan: a spec or a problem (text in TOML or JSON, or an object), a link to the planner's page, or the
 * text of a plan file, whose spec is used.
 */
export type SpecInput = string | Spec | Problem;

/** One error of an input. */
export interface Fault {
    /** The field's path, such as `training.microbatches` or `stages[3].forward_ns`. */
    field: string;
    /** The value of the field, shortened; `nothing` if the field is missing. */
    found: string;
    /** What is accepted: `a whole number from 1 to 1024`. */
    accepted: string;
}

/** The error that a function throws if it refuses an input, or if there is no plan. The message lists all errors. */
export interface Refusal extends Error {
    /** All faults, in the order of the fields; empty if no single field is the cause. */
    faults: Fault[];
    /** Position of a syntax error in TOML or JSON: line and column from 1, and bytes from the start. */
    place?: { line: number; column: number; offset: number };
}

/** Progress of a search. */
export interface Progress {
    /** Simulated ops so far; `effort` is the limit. */
    ops: number;
    /** Cost of the best schedule so far. */
    cost_ns: number;
    /** Lower bound: no schedule costs less. */
    bound_ns: number;
}

export interface SearchOptions {
    /** Effort of the search for `best` on each placement, in simulated ops of about 20 to 100 ns each; default 2 million. */
    effort?: number;
    /** Measured times of the operators of a model, as text that `pipeplan profile -o FILE` writes. They replace estimates. */
    profile?: string;
    /** Called many times per second. If it returns `false`, the search stops soon and gives the best so far. */
    onProgress?: (progress: Progress) => boolean | void;
}

export interface MemoryOptions extends SearchOptions {
    /** A published schedule or `best`; default: the schedule of the spec. */
    schedule?: string;
}

/** A custom schedule. */
export interface CustomSchedule {
    /**
     * An op list for each rank such as `0F0 0F1 0BW0 0BW1` (stage, job, microbatch), or the CSV that torch loads. It is
     * checked and timed like any schedule.
     */
    order?: string | string[];
    /** Its name; default `own-order`. */
    name?: string;
}

/** With a custom schedule, `plan` uses it instead of `schedule`, and throws all its errors. */
export interface PlanOptions extends MemoryOptions, CustomSchedule {}

/** What a person adds to the text of a run. */
export interface ImportOptions {
    /** Number of devices, if the text does not give it. */
    devices?: number;
    /** Values of variables of a script, whatever it assigns to them; `1` is the first thing that it is called with. */
    variables?: Record<string, string>;
    /** Which training command, from 1, if the text has several. */
    command?: number;
    /** Called during the search; `false` stops it with the results so far. */
    onProgress?: (progress: Progress) => boolean | void;
}

/** A run of Megatron-LM as a spec. Names of arguments have no leading dashes. */
export interface ImportedRun {
    spec: Spec;
    /** What a spec has no word for, or says otherwise. */
    notes: string[];
    /** What was done with each argument. */
    arguments: {
        /** They decide the plan. */
        used: string[];
        /** They do not change it. */
        harmless: string[];
        /** They change it, and it is planned otherwise: how. */
        not_modelled: Record<string, string>;
        not_known: string[];
        /** Empty: a run with such arguments is refused. */
        refused: string[];
    };
    /** What the log reports, and what is planned. */
    measured: {
        schedule: string;
        reported_steps: number;
        step_ns: number | null;
        planned_step_ns: number | null;
        peaks: { rank: number; peak_bytes: number; planned_bytes: number }[];
    };
}

/** A custom schedule has a row before that of `best`; `best` is never worse. */
export interface CompareOptions extends SearchOptions, CustomSchedule {}

/** One schedule of a comparison. Fields that do not apply to an absent schedule are null. */
export interface Row {
    /** Its name, or `best`. */
    schedule: string;
    status: "ok" | "absent";
    /** Why the schedule is absent. */
    reason: string | null;
    /** End of the last op minus start of the first. */
    makespan_ns: number | null;
    /** The largest span of a rank. */
    longest_span_ns: number | null;
    /** Idle share under the objective. */
    bubble_ratio: number | null;
    /** Peak memory in bytes, by rank, static bytes included. */
    peak_bytes: number[] | null;
    /** Placement of stages: `linear`, `looped`, `v`, `wave`, `two-way` or `list`. */
    placement: string | null;
    /** No valid schedule on this placement costs less. */
    bound_ns: number | null;
    /** No valid schedule costs less on any placement that this row can use. */
    bound_of_all_ns: number | null;
    /** Cost / bound − 1: 0.05 is at most 5 % above the optimum. */
    gap: number | null;
    /** With `jitter_permille`: half of the steps cost at most this. Null without jitter. */
    typical_ns: number | null;
    /** With `jitter_permille`: 1 step in 20 costs more than this. Null without jitter. */
    late_ns: number | null;
    /** Cost with communication: ranks wait for P2P transfers, as `messages` of the spec says; null if that can hang. */
    carried_ns: number | null;
    /** Step time, with gradient sync and optimizer; only for a model. */
    step_ns: number | null;
    /** Only for a model. */
    tokens_per_s: number | null;
    /** Model FLOPs utilization; only for a model. */
    mfu: number | null;
}

export interface Comparison {
    /** The objective of `gap`, `bubble_ratio` and `best`. */
    objective: "makespan" | "longest_span";
    /** Every published schedule, then `best`. */
    rows: Row[];
}

/** Memory of one rank. */
export interface RankMemory {
    rank: number;
    /** The model's layers that it holds, by their own numbers. */
    layers: number[];
    /** Bytes held during the whole step, by kind: `weights`, `gradients`, `optimizer` and so on. */
    static_bytes: Record<string, number>;
    /** Peak of activations, in addition to static bytes. */
    activation_bytes: number;
    /** Peak of host memory for offloaded activations. */
    host_bytes: number;
    /** Peak of static bytes and activations together. */
    peak_bytes: number;
    /** The op at the peak, such as `0F3`. */
    at_op: string | null;
    at_ns: number;
    limit_bytes: number | null;
    fits: boolean;
}

/** A suggestion: changes of a spec that need less memory. None changes the training result, except the last bits of sums. */
export interface Suggestion {
    changes: { field: string; from: string; to: string }[];
    /** Factor on the number of devices. */
    devices: number;
    /** Peak memory of the fullest rank with the changes. */
    peak_bytes: number;
    /** Whether every rank fits with the changes. */
    fits: boolean;
    /** Step time with the changes. */
    step_ns: number;
}

/** One place where a compiler pass applied, or did not apply. */
export interface PassEntry {
    what: string;
    why: string;
    layer: number | null;
    bytes: number;
}

export interface Memory {
    schedule: string;
    objective: "makespan" | "longest_span";
    cost_ns: number;
    fits: boolean;
    /** Why this schedule replaces `best`, if no schedule fits. */
    note: string | null;
    ranks: RankMemory[];
    /** By stage: the share of the activations of F, host memory included, that is still held after B, in thousandths. */
    held_for_weight_permille: number[];
    /** How good the assignment of layers to stages is, if it was made for the limit. */
    deal: { slowest_stage_ns: number; bound_ns: number } | null;
    /** What each layer recomputes, and how many layers offload activations, if the spec leaves that to the limit. */
    fit: { pass: string; done: PassEntry[]; skipped: PassEntry[] } | null;
    step_ns: number | null;
    /** Single changes that help; those that fit come first. */
    changes: Suggestion[];
    /** Combinations of changes that fit, if no single change does. */
    combinations: Suggestion[];
    /** All helpful changes together, if no combination fits. */
    all_together: Suggestion | null;
    cheapest: Suggestion | null;
    /**
     * The cost of the memory limit, if the best schedule fits and the limit makes its step longer: changes on the same
     * devices with a shorter step, and combinations that are shorter still, the shortest first. A search can improve
     * these times.
     */
    shorter: { without_limit_step_ns: number; changes: Suggestion[]; combinations: Suggestion[] } | null;
}

export interface Bounds {
    objective: "makespan" | "longest_span";
    /** No valid schedule costs less on any of these placements. */
    bound_ns: number;
    placements: {
        placement: string;
        chunks: number;
        bound_ns: number;
        /** The reason for the bound. */
        because: string;
    }[];
}

/** Where every rank waits on a transport that does not complete a plan, and the cycle of ranks. */
export interface Stuck {
    waits?: { rank: number; step: number; message: string; waits_for_rank: number }[];
    circle?: number[];
    error?: string;
}

/** The result of `check` for a valid plan. */
export interface Checked {
    valid: true;
    digest: string;
    /** Whether each transport completes it: `rendezvous`, `buffered`, `grouped`, `pair-ordered`, `streams`. */
    transports: Record<string, boolean>;
    stuck: Record<string, Stuck>;
    /** Parts that `check` cannot derive and takes from the file: measured times, parts of another version. */
    on_trust: string[];
}

/** The result of `check` for an invalid plan. */
export interface NotValid {
    valid: false;
    error: string;
    /** All violations of its schedule or program. */
    violations: string[];
}

/** `torch-csv`, `megatron` and `megatron-args` apply to plans, `paddle-log` to traces, the others to both. */
/** Formats that are bytes, not text. */
export type BinaryFormat = "perfetto";

export type ExportFormat = "chrome-trace" | "torch-csv" | "megatron" | "megatron-args" | "svg" | "text" | "paddle-log" | "csv";

export interface PublishedSchedule {
    /** The name in specs and options: `1f1b`. */
    name: string;
    /** The display name: `1F1B`. */
    title: string;
    /** What it does, its benefit and its cost. */
    idea: string;
    /** Paper and section. */
    source: string;
}

/** The best schedule of a search so far. */
export interface Best {
    /** The name of a published schedule, or `best` for one that the search found. */
    schedule: string;
    /** Its cost under the objective. */
    cost_ns: number;
}

export interface TuneOptions {
    /** Number of devices; default: that of the spec. */
    devices?: number;
    /** Fields that stay as they are. */
    keep?: TunedField[];
    /** Allowed schedules, `best` for a search; default: all. */
    schedules?: string[];
    /** Number of layouts to keep; default 8. */
    most?: number;
    /** Effort of each search for `best`, as in {@link SearchOptions}. */
    effort?: number;
    /** Measured times, as in {@link SearchOptions}. */
    profile?: string;
}

/** A field of a spec that `tune` changes, unless `keep` lists it. */
export type TunedField =
    | "parallel.pipeline" | "parallel.tensor" | "parallel.context" | "parallel.data" | "parallel.expert"
    | "parallel.whole_experts" | "parallel.chunks" | "training.microbatch_size" | "training.recompute"
    | "parallel.sequence_parallel" | "parallel.zero" | "parallel.partition";

/** A layout with its fastest step. */
export interface Layout {
    /** Pipeline parallel (PP). */
    pipeline: number;
    /** Tensor parallel (TP). */
    tensor: number;
    /** Context parallel (CP). */
    context: number;
    /** Data parallel (DP). */
    data: number;
    /** ZeRO stage: 1 optimizer states, 2 also gradients, 3 also parameters. */
    zero: number;
    /** Expert parallel (EP). */
    expert: number;
    /** Expert tensor parallel: true is ETP = 1 (TP ranks keep experts whole), false is ETP = TP. */
    whole_experts: boolean;
    /** Micro-batch size, in sequences. */
    microbatch_size: number;
    /** Microbatches per step, of each replica. */
    microbatches: number;
    chunks: number;
    /** Recomputation: `none`, or by layers `3 full, 5 cheap of 80`. */
    recompute: string;
    /** Activation offload: the number of layers at the start of each stage, `none` or `all`. */
    offload: string;
    schedule: string;
    /** Step time. */
    step_ns: number;
    tokens_per_s: number;
    mfu: number;
    /** Idle share under the objective. */
    bubble_ratio: number;
    /** Peak memory of the fullest rank. */
    peak_bytes: number;
    /** Lower bound on the step time of this layout, for any schedule. */
    floor_ns: number;
    /** The changes from the given spec. */
    changes: { field: string; from: string; to: string }[];
    /** The spec of the layout, ready to plan. */
    spec: Spec;
}

export interface Layouts {
    /** Whether the search is complete. */
    complete: boolean;
    /** The given spec, with its fastest allowed schedule. */
    given: Layout | null;
    /** Why the given spec has no schedule. */
    given_reason: string | null;
    /** The fastest first. */
    layouts: Layout[];
    /** Number of layouts, by outcome. */
    tally: {
        layouts: number;
        /** Not allowed by the model. */
        refused: number;
        /** Too large for all ranks together, with any recomputation. */
        too_large: number;
        /** Every schedule was planned. */
        planned: number;
        /** Planned, but no schedule fits. */
        unfit: number;
        /** Skipped: no step of the layout can be among the fastest. */
        slower: number;
        /** The best schedule was searched. */
        searched: number;
    };
}

export interface SensitivityOptions {
    /** Size of a change, up and down, in thousandths; default 100. */
    permille?: number;
    /** Number of changes to plan again, the largest effects first; default 0. */
    anew?: number;
    /** Effort of each search, in simulated ops. */
    effort?: number;
    /** Called during the search; `false` stops it with the results so far. */
    onProgress?: (progress: Progress) => boolean | void;
}

/** The effect of one change on the time of a plan. */
export interface Effect {
    what: "everything" | "job" | "rank" | "stage" | "messages" | "link" | "memory";
    /** The job. BW is the time of all backwards. */
    job?: "F" | "B" | "W" | "BW";
    rank?: number;
    stage?: number;
    /** The ranks of the link. */
    ranks?: [number, number];
    /** Time of the plan's schedule if the item takes longer. */
    longer_ns: number;
    /** Time of the plan's schedule if the item takes less. */
    less_ns: number;
    /** The same with a new plan, if there is one; for memory: with more and with less. Null without a plan. */
    anew?: { longer_ns: number | null; less_ns: number | null };
}

export interface Sensitivity {
    /** Size of the changes, in thousandths. */
    change_permille: number;
    /** Planned cost of the schedule, by the objective. */
    cost_ns: number;
    /** Cost of the best schedule, if something was planned again. */
    best_ns?: number;
    /** Whether all changes were evaluated. */
    complete: boolean;
    /** By kind; within a kind, the largest effect first. */
    effects: Effect[];
}

/** Measured times of one stage and job. */
export interface JobTimes {
    stage: number;
    job: "F" | "B" | "W" | "BW";
    /** Measured ops, over all counted steps and all replicas of the stage. */
    ops: number;
    planned_ns: number;
    mean_ns: number;
    least_ns: number;
    most_ns: number;
    /** Their time on the critical path, each at its mean. */
    path_ns: number;
}

/** Measured times of P2P transfers from one rank to another that a rank waited for. */
export interface HopTimes {
    from: number;
    to: number;
    messages: number;
    planned_ns: number;
    median_ns: number;
}

export interface Calibration {
    /** Counted steps: all but the first, if there are others. */
    steps: number;
    /** The planned makespan and four causes; together they are the measured makespan. */
    makespan: {
        planned_ns: number;
        /** Ops take longer than planned, on average. */
        ops_ns: number;
        /** P2P transfers take longer than planned. */
        hops_ns: number;
        /** Ops of one stage and job vary. */
        spread_ns: number;
        /** Overhead of the runner, and waits between ranks. */
        rest_ns: number;
        measured_ns: number;
    };
    jobs: JobTimes[];
    hops: HopTimes[];
    /** Time of P2P transfers on the critical path. */
    path_hops_ns: number;
    /** Standard deviation of op times from the mean of their stage and job, in thousandths of the mean. */
    jitter_permille: number;
    /** The plan's problem with measured times, on the same placement. */
    problem: Problem;
}
