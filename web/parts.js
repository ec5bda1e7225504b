// Parts of the page that few visits need, each loaded once, when it is needed first: `pipeplan-reader` and `pipeplan-planner`.
const loaded = new Map();

function load(part) {
  if (!loaded.has(part)) {
    const loading = import(`./${part}.js`).then(async (module) => {
      await module.default();
      return module;
    });
    loaded.set(part, loading);
    // Without a network it fails, and may come later.
    loading.catch(() => loaded.delete(part));
  }
  return loaded.get(part);
}

// Calls a function of a part.
export async function call(part, work, given) {
  const module = await load(part);
  return module[work](...given);
}
