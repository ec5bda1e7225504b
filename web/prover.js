// Proves a plan in a worker of its own: the solver is loaded here, where a proof is asked for, and nowhere else.
// Asked { plan, seconds }, it answers words [steps, cost, bound, better plan or null], the last one as { last }.
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
