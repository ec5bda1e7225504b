// Starts the planner in a worker; in one named `trace`, what reads and explains measured runs. What stands behind `?` is the page's version, so that both come from one build.
const { href, search } = new URL(self.location.href);
import(`./pipeplan-planner.js${search}`)
  .then((planner) => planner.default({ module_or_path: new URL(`pipeplan-planner_bg.wasm${search}`, href) }))
  .catch((error) => self.postMessage(String(error)));
// What fails while a run is read is nobody's answer otherwise.
if (self.name === "trace") self.addEventListener("unhandledrejection", ({ reason }) => self.postMessage(String(reason)));
