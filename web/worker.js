// Starts the planner in a worker: the same two files that the page has loaded, named by the page.
const glue = new URL(new URL(self.location.href).searchParams.get("glue"), self.location.href).href;
import(glue)
  .then((planner) => planner.default({ module_or_path: glue.replace(/\.js$/, "_bg.wasm") }))
  .catch((error) => self.postMessage(String(error)));
