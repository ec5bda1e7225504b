
// How the functions are called, for the compiler alone.
const problem: types.Problem = { ranks: 2, microbatches: 4, stages: { forward_ns: 1, backward_input_ns: 2 } };
export const file: string = pipeplan.plan(problem, { schedule: "best", effort: 10, onProgress: ({ ops }) => ops < 5 });
export const read = JSON.parse(file) as types.Plan;
export const rows: types.Row[] = pipeplan.compare("ranks = 2").rows;
export const answer = pipeplan.check(file);
export const said: string = answer.valid ? answer.digest : answer.violations.join();
export const svg: string = pipeplan.exportAs(file, "svg");
export const events: Uint8Array = pipeplan.exportBytes(file, "perfetto");
export const address: string = pipeplan.link({ model: { name: "llama-2-7b" }, training: { microbatches: 4 } }, "https://a.b/");
export const lost: number = pipeplan.calibrate(file, "the text of a trace").makespan.rest_ns;
export const slow: number = pipeplan.sensitivity(file, { permille: 50, anew: 1 }).effects[0].longer_ns;
export const imported: string[] = pipeplan.importRun("train.sh", "h100", { variables: { SIZE: "7B" }, command: 1 }).arguments.used;
export const traced: string = pipeplan.traceOfTorch(file, ["what torch wrote of rank 0"]);
export const measured: types.Problem = pipeplan.calibrate(file, "the text of a trace").problem;
export const search = new pipeplan.Search(problem, { effort: 5 });
export const more: boolean = search.step();
export const cost: number | undefined = search.best?.cost_ns;
// @ts-expect-error: no such option
pipeplan.plan(problem, { efort: 10 });
// @ts-expect-error: a number is no spec
pipeplan.compare(5);
// @ts-expect-error: an unknown field of a stage
pipeplan.plan({ ranks: 2, microbatches: 4, stages: { forward: 1 } });
