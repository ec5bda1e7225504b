// Starts the planner in a worker: the same WebAssembly file as the page's, named by the page.
const glue = new URL(self.location.href).searchParams.get("glue");
import(new URL(glue, self.location.href).href)
  .then((planner) => planner.default())
  .catch((error) => self.postMessage(String(error)));
