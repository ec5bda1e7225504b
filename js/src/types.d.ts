/**
 * What is planned: a spec or a bare problem, as text in TOML or JSON or as an object, a link to the planner's page, or
 * the text of a plan file, whose spec is meant.
 */
export type SpecInput = string | Spec | Problem;

/** One thing wrong with an input. */
export interface Fault {
    /** The field's path, such as `training.microbatches` or `stages[3].forward_ns`. */
    field: string;
    /** What stood there, shortened; `nothing` where the field is missing. */
    found: string;
    /** What would be accepted: `a whole number from 1 to 1024`. */
    accepted: string;
}

/** What is thrown where an input is refused, or where there is no plan for it. Its message says all that is wrong. */
export interface Refusal extends Error {
    /** All faults, in the order of the fields; empty where no field is to blame. */
    faults: Fault[];
    /** Where a text stops being TOML or JSON: line and column from 1, and bytes from the start. */
    place?: { line: number; column: number; offset: number };
}

/** Where a search stands. */
export interface Progress {
    /** Simulated ops so far, of those that `effort` allows. */
    ops: number;
    /** What the best schedule so far costs. */
    cost_ns: number;
    /** What no schedule goes under. */
    bound_ns: number;
}

export interface SearchOptions {
    /** Work of the search for `best` on each placement, in simulated ops of some 20 to 100 ns; 2 million where not given. */
    effort?: number;
    /** Measured times of a model's operators, as the text that `pipeplan profile -o FILE` writes, in the place of estimates. */
    profile?: string;
    /** Hears of the search, many times a second. After it has returned `false` the best so far is soon the answer. */
    onProgress?: (progress: Progress) => boolean | void;
}

export interface MemoryOptions extends SearchOptions {
    /** A published schedule or `best`; what the spec says where not given. */
    schedule?: string;
}

/** An order of your own. */
export interface OwnOrder {
    /**
     * A row for each rank such as `0F0 0F1 0BW0 0BW1` (stage, job, microbatch), or the CSV that torch loads, judged like any
     * schedule.
     */
    order?: string | string[];
    /** What it is called; `own-order` where not given. */
    name?: string;
}

/** With an order, `plan` takes it in the place of a schedule, and throws all that is wrong with it. */
export interface PlanOptions extends MemoryOptions, OwnOrder {}

/** An order gets a row of its own before that of `best`, which is none worse. */
export interface CompareOptions extends SearchOptions, OwnOrder {}

/** One schedule of a comparison. What does not apply to an absent one is null. */
export interface Row {
    /** Its name, or `best`. */
    schedule: string;
    status: "ok" | "absent";
    /** Why there is none. */
    reason: string | null;
    /** End of the last op minus start of the first. */
    makespan_ns: number | null;
    /** The largest span of a rank. */
    longest_span_ns: number | null;
    /** Idle share under the objective. */
    bubble_ratio: number | null;
    /** Most bytes held at once, by rank, static bytes included. */
    peak_bytes: number[] | null;
    /** Where the stages are: `linear`, `looped`, `v`, `wave`, `two-way` or `list`. */
    placement: string | null;
    /** No valid schedule on this placement costs less. */
    bound_ns: number | null;
    /** No valid schedule costs less on any placement that was open to this row. */
    bound_of_all_ns: number | null;
    /** Cost over bound, minus 1: 0.05 is at most 5 % from the best possible. */
    gap: number | null;
    /** With the spec's `jitter_permille`: what half of the steps cost at most. Null without jitter. */
    typical_ns: number | null;
    /** With the spec's `jitter_permille`: what one step of twenty costs more than. Null without jitter. */
    late_ns: number | null;
    /** The cost where ranks wait for their transfers, as the spec's `messages` say; null where that could hang. */
    carried_ns: number | null;
    /** The whole step, gradients and the optimizer included; of a model only. */
    step_ns: number | null;
    /** Of a model only. */
    tokens_per_s: number | null;
    /** Model FLOPs utilisation; of a model only. */
    mfu: number | null;
}

export interface Comparison {
    /** What `gap`, `bubble_ratio` and `best` are judged by. */
    objective: "makespan" | "longest_span";
    /** Every published schedule, then `best`. */
    rows: Row[];
}

/** What one rank holds. */
export interface RankMemory {
    rank: number;
    /** What it holds throughout, by kind: `weights`, `gradients`, `optimizer` and so on. */
    static_bytes: Record<string, number>;
    /** The most that its microbatches hold at once, beside that. */
    activation_bytes: number;
    /** The most of the host's memory that they hold at once. */
    host_bytes: number;
    /** What it holds throughout and what its microbatches hold, together. */
    peak_bytes: number;
    /** The op during which that is, such as `0F3`. */
    at_op: string | null;
    at_ns: number;
    limit_bytes: number | null;
    fits: boolean;
}

/** Changes of a spec that make it hold less. None of them changes what is learnt but the last bits of sums. */
export interface Relief {
    changes: { field: string; from: string; to: string }[];
    /** How many times as many devices that takes. */
    devices: number;
    /** The most bytes that a rank then holds. */
    peak_bytes: number;
    /** Whether every rank then fits. */
    fits: boolean;
    /** The time of a whole step then. */
    step_ns: number;
}

/** One place where a pass over the operators applied, or did not. */
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
    /** Why this schedule stands for `best`, where none fits. */
    note: string | null;
    ranks: RankMemory[];
    /** By stage: the share of what F keeps, also in the host's memory, that is still held after B, in thousandths. */
    held_for_weight_permille: number[];
    /** How good the deal of layers is, where it was made for the limit. */
    deal: { slowest_stage_ns: number; bound_ns: number } | null;
    /** What each layer computes again, and how many wait in the host's memory, where the spec leaves that to the limit. */
    fit: { pass: string; done: PassEntry[]; skipped: PassEntry[] } | null;
    step_ns: number | null;
    /** Single changes that help, those that then fit first. */
    changes: Relief[];
    /** Changes that fit together, where none does alone. */
    combinations: Relief[];
    /** All that helps together, where no combination fits. */
    all_together: Relief | null;
    cheapest: Relief | null;
    /**
     * What the memory limit costs, where the best schedule fits and the limit makes its step longer: changes on the same
     * devices with a shorter step, and those that are shorter still together, the shortest first. Their orders are first
     * ones, which a search improves on.
     */
    shorter: { without_limit_step_ns: number; changes: Relief[]; combinations: Relief[] } | null;
}

export interface Bounds {
    objective: "makespan" | "longest_span";
    /** No valid schedule costs less on any of these placements. */
    bound_ns: number;
    placements: {
        placement: string;
        chunks: number;
        bound_ns: number;
        /** What keeps a schedule from being faster. */
        because: string;
    }[];
}

/** Where every rank waits on a transport that does not complete a plan, and in which circle. */
export interface Stuck {
    waits?: { rank: number; step: number; message: string; waits_for_rank: number }[];
    circle?: number[];
    error?: string;
}

/** What `check` says of a valid plan. */
export interface Checked {
    valid: true;
    digest: string;
    /** Whether each transport completes it: `rendezvous`, `buffered`, `grouped`, `pair-ordered`, `streams`. */
    transports: Record<string, boolean>;
    stuck: Record<string, Stuck>;
    /** What was taken as the file says it, since it does not follow from the rest: measured times, another version's. */
    on_trust: string[];
}

/** What `check` says of any other. */
export interface NotValid {
    valid: false;
    error: string;
    /** What is wrong with its schedule or program, one by one. */
    violations: string[];
}

/** `torch-csv`, `megatron` and `megatron-args` are of plans, the others of traces too. */
export type ExportFormat = "chrome-trace" | "torch-csv" | "megatron" | "megatron-args" | "svg" | "text";

export interface PublishedSchedule {
    /** As in specs and options: `1f1b`. */
    name: string;
    /** As a person reads it: `1F1B`. */
    title: string;
    /** What it does, and what that brings and costs. */
    idea: string;
    /** Paper and section. */
    source: string;
}

/** The best that a search has found so far. */
export interface Best {
    /** A published schedule's name, or `best` for one that was found. */
    schedule: string;
    /** What it costs, by the objective. */
    cost_ns: number;
}

export interface TuneOptions {
    /** Devices to use; those of the spec where not given. */
    devices?: number;
    /** Fields that stay as they are. */
    keep?: TunedField[];
    /** Schedules that may be used, `best` for a search among all; all where not given. */
    schedules?: string[];
    /** Layouts that are kept; 8 where not given. */
    most?: number;
    /** Work of each search for `best`, as in {@link SearchOptions}. */
    effort?: number;
    /** Measured times, as in {@link SearchOptions}. */
    profile?: string;
}

/** A field of a spec that is changed, unless it is to be kept. */
export type TunedField =
    | "parallel.pipeline" | "parallel.tensor" | "parallel.context" | "parallel.data" | "parallel.expert"
    | "parallel.whole_experts" | "parallel.chunks" | "training.microbatch_size" | "training.recompute"
    | "parallel.sequence_parallel" | "parallel.zero" | "parallel.partition";

/** A layout with the fastest step that was found for it. */
export interface Layout {
    /** Pipeline ranks. */
    pipeline: number;
    /** Devices that share matrices. */
    tensor: number;
    /** Devices that hold parts of every sequence. */
    context: number;
    /** Copies of the pipeline. */
    data: number;
    /** What they share out: 1 states of the optimizer, 2 also gradients, 3 also weights. */
    zero: number;
    /** Devices that experts are dealt to. */
    expert: number;
    /** Whether devices that share matrices hold whole experts, to which each sends tokens of its own. */
    whole_experts: boolean;
    /** Sequences of a microbatch. */
    microbatch_size: number;
    /** Microbatches of each copy in a step. */
    microbatches: number;
    chunks: number;
    /** What is computed again: `none`, or by layers `3 full, 5 cheap of 80`. */
    recompute: string;
    /** Layers at the start of each stage that keep what they keep in the host's memory: `none`, their number, or `all`. */
    offload: string;
    schedule: string;
    /** The time of a whole step. */
    step_ns: number;
    tokens_per_s: number;
    mfu: number;
    /** Idle share under the objective. */
    bubble_ratio: number;
    /** The most bytes that a rank holds. */
    peak_bytes: number;
    /** No step of this layout takes less, whatever its schedule. */
    floor_ns: number;
    /** What the given spec has to be changed in. */
    changes: { field: string; from: string; to: string }[];
    /** The spec that says all of it: it can be planned. */
    spec: Spec;
}

export interface Layouts {
    /** Whether nothing is left to do. */
    complete: boolean;
    /** The spec as it was given, with the fastest schedule of those allowed. */
    given: Layout | null;
    /** Why it has none. */
    given_reason: string | null;
    /** The fastest first. */
    layouts: Layout[];
    /** How many layouts there are, and what became of them. */
    tally: {
        layouts: number;
        /** Not allowed by the model. */
        refused: number;
        /** Too large for all ranks together, whatever is computed again. */
        too_large: number;
        /** Every schedule was planned. */
        planned: number;
        /** Of these, those that no schedule made fit. */
        unfit: number;
        /** Passed over: none of their steps could be among the fastest. */
        slower: number;
        /** The best schedule was searched for. */
        searched: number;
    };
}

export interface SensitivityOptions {
    /** How much longer, and how much less, in thousandths; 100 where not given. */
    permille?: number;
    /** How many of the changes are planned anew, those first that matter most; none where not given. */
    anew?: number;
    /** Work of each search, in simulated ops. */
    effort?: number;
    /** Called now and then; false ends the search, with what was found so far. */
    onProgress?: (progress: Progress) => boolean | void;
}

/** What one change does to a plan's time. */
export interface Effect {
    what: "everything" | "job" | "rank" | "stage" | "messages" | "link" | "memory";
    /** Of a job: which. BW is all that backwards take. */
    job?: "F" | "B" | "W" | "BW";
    rank?: number;
    stage?: number;
    /** Of a link: the ranks at its ends. */
    ranks?: [number, number];
    /** What the plan's order takes where it takes that much longer. */
    longer_ns: number;
    /** What it takes where that takes as much less. */
    less_ns: number;
    /** The same planned anew, where it has been; of memory, where there is more and where there is less. Null without a plan. */
    anew?: { longer_ns: number | null; less_ns: number | null };
}

export interface Sensitivity {
    /** How large the changes are, in thousandths. */
    change_permille: number;
    /** What the order takes as planned, by the objective. */
    cost_ns: number;
    /** What the best takes, where something has been planned anew. */
    best_ns?: number;
    /** Whether all changes have been looked at. */
    complete: boolean;
    /** By kind; within one, what costs the most first. */
    effects: Effect[];
}

/** What the ops of one stage and job took. */
export interface JobTimes {
    stage: number;
    job: "F" | "B" | "W" | "BW";
    /** Ops measured, over all steps that count and all copies of the stage. */
    ops: number;
    planned_ns: number;
    mean_ns: number;
    least_ns: number;
    most_ns: number;
    /** How much of the longest path through the order is theirs, each at its mean. */
    path_ns: number;
}

/** What messages from one rank to another took, of those that were waited for. */
export interface HopTimes {
    from: number;
    to: number;
    messages: number;
    planned_ns: number;
    median_ns: number;
}

export interface Calibration {
    /** Recorded steps that count: all but the first, where there are others. */
    steps: number;
    /** How the planned makespan became the measured one: planned and the four causes add up to it. */
    makespan: {
        planned_ns: number;
        /** Ops take longer than planned on average. */
        ops_ns: number;
        /** Messages do. */
        hops_ns: number;
        /** Ops of one stage and job differ among each other. */
        spread_ns: number;
        /** Neither: the runner itself, and ranks that meet late. */
        rest_ns: number;
        measured_ns: number;
    };
    jobs: JobTimes[];
    hops: HopTimes[];
    /** How much of the longest path is hops. */
    path_hops_ns: number;
    /** How much ops differ from the mean of their stage and job: their standard deviation, in thousandths of it. */
    jitter_permille: number;
    /** The plan's problem with measured times, on the same placement. */
    problem: Problem;
}
