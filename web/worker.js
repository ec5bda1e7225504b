// Starts the planner in a worker. What stands behind `?` is the page's version, so that both come from one build.
const { href, search } = new URL(self.location.href);
import(`./pipeplan-planner.js${search}`)
  .then((planner) => planner.default({ module_or_path: new URL(`pipeplan-planner_bg.wasm${search}`, href) }))
  .catch((error) => self.postMessage(String(error)));
