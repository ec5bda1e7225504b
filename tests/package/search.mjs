// How a search is bounded, stopped and stepped. Small memory makes it a search worth stopping.
import assert from "node:assert/strict";
import { check, compare, memoryOf, plan, Search, tune, Tuner } from "pipeplan";

const spec = {
  ranks: 4, microbatches: 8, chunks: 2, placement: "v", limit_bytes: 12,
  stages: {
    forward_ns: 7, backward_input_ns: 9, backward_weight_ns: 5,
    forward_bytes: 2, backward_input_bytes: -1, backward_weight_bytes: -1,
  },
  transfer_ns: 1,
};
const best = plan(spec);

// Piece by piece: the same plan, and never a worse one than before.
const search = new Search(spec);
assert.equal(search.best, undefined);
assert.throws(() => search.plan(), /no schedule is valid here/);
let costs = [];
while (search.step()) {
  if (search.best) costs.push(search.best.cost_ns);
}
assert.ok(costs.length > 2);
assert.deepEqual(costs, costs.toSorted((a, b) => b - a));
assert.equal(search.plan(), best);
assert.equal(search.step(), false);
search.free();

// Stopped: what was the best until then, and valid.
let all = 0;
plan(spec, { onProgress: () => { all += 1; } });
let told = 0;
const stopped = plan(spec, { onProgress: ({ ops, cost_ns, bound_ns }) => {
  assert.ok(ops >= 0 && cost_ns >= bound_ns && bound_ns > 0);
  told += 1;
  return told < 2;
} });
assert.ok(told >= 2 && told < all, `${told} of ${all}`);
assert.ok(check(stopped).valid);
assert.ok(JSON.parse(stopped).prediction.makespan_ns >= JSON.parse(best).prediction.makespan_ns);

// What the caller's function throws is thrown, by everything that searches, and the planner works on.
const wrong = () => { throw new RangeError("enough"); };
const model = {
  model: { name: "tiny-llama" }, cluster: { device: "cpu" }, parallel: { pipeline: 4 },
  training: { microbatches: 8, sequence: 64 },
};
for (const [call, spec_] of [[plan, spec], [compare, spec], [memoryOf, model]]) {
  assert.throws(() => call(spec_, { onProgress: wrong }), RangeError);
}
// A function may plan itself.
let inner;
plan(spec, { onProgress: () => { inner ??= plan(spec, { effort: 1 }); } });
assert.ok(check(inner).valid);
assert.equal(plan(spec), best);

// Less effort is no better.
const little = JSON.parse(plan(spec, { effort: 1 })).prediction.makespan_ns;
assert.ok(little >= JSON.parse(best).prediction.makespan_ns);

// Layouts piece by piece: the same as at once, and never fewer or slower than before.
const options = { schedules: ["1f1b", "zb-v"], most: 2 };
const tuner = new Tuner(model, options);
assert.deepEqual(tuner.found.layouts, []);
let pieces = 0;
let fastest = Infinity;
while (tuner.step()) {
  pieces += 1;
  const now = tuner.found;
  assert.equal(now.complete, false);
  const first = now.layouts[0]?.step_ns ?? fastest;
  assert.ok(first <= fastest);
  fastest = first;
}
assert.ok(pieces > 10);
assert.deepEqual(tuner.found, tune(model, options));
assert.equal(tuner.found.complete, true);
assert.ok(check(plan(tuner.found.layouts[0].spec)).valid);
tuner.free();
