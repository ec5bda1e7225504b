// Proves a plan in a separate worker. The solver is loaded only here, when a person asks for a proof.
// Input: { plan, seconds }. Output: { word: [steps, cost, bound, better plan or null] }, and the last one as { last }.
import start, { prove } from "./pipeplan-prover.js";

self.onmessage = async ({ data: { plan, seconds } }) => {
  try {
    await start();
    const last = prove(plan, seconds, (word) => self.postMessage({ word }));
    self.postMessage({ last });
  } catch (error) {
    self.postMessage({ error: String(error.message ?? error) });
  }
};
