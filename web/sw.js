// Keeps the page for use without a network. With one, what the network has comes first, so that nothing grows old.
const CACHE = "pipeplan";
// Parts whose names stay. Those that Trunk names by their content are found in the page itself.
const PARTS = [
  "worker.js", "parts.js", "prover.js", "manifest.webmanifest", "icon.svg", "pipeplan-planner.js", "pipeplan-planner_bg.wasm",
  "pipeplan-reader.js", "pipeplan-reader_bg.wasm", "pipeplan-prover.js", "pipeplan-prover_bg.wasm",
];
const scope = new URL("./", self.location.href);
// Under its name alone: what stands behind `?` and `#` opens other plans with the same files.
const plain = (address) => new URL(new URL(address).pathname, scope).href;

// The files that a page names, beside itself.
function named(html) {
  const found = html.matchAll(/["'](?:\.\/)?([\w.-]+\.(?:js|wasm|css))["']/g);
  return [...new Set([...PARTS, ...[...found].map(([, name]) => name)])].map((name) => new URL(name, scope).href);
}

// Keeps the page and all that belongs to it, and drops what belonged to the page before.
async function keep(page) {
  const cache = await caches.open(CACHE);
  const html = await page.clone().text();
  const wanted = named(html);
  const kept = new Set((await cache.keys()).map(({ url }) => url));
  const before = await cache.match(scope.href);
  const same = before && (await before.text()) === html;
  await Promise.all(wanted.filter((address) => !same || !kept.has(address)).map((address) => cache.add(address)));
  await cache.put(scope.href, page);
  await Promise.all([...kept].filter((address) => ![scope.href, ...wanted].includes(address)).map((address) => cache.delete(address)));
}

self.addEventListener("install", (event) => {
  self.skipWaiting();
  event.waitUntil(fetch(scope.href).then(keep));
});
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  const { request } = event;
  const address = new URL(request.url);
  const isPage = request.mode === "navigate" && address.pathname === scope.pathname;
  const isPart = address.origin === scope.origin && /^[^/]+\.(js|wasm|css|svg|webmanifest)$/.test(address.pathname.slice(scope.pathname.length));
  // Plans, traces and the book come from the network alone.
  if (request.method !== "GET" || !address.pathname.startsWith(scope.pathname) || !(isPage || isPart)) return;
  const known = () => caches.match(isPage ? scope.href : plain(request.url)).then((found) => found ?? Response.error());
  const fetched = (answer) => {
    // Whoever has another build now keeps that one.
    if (isPage && answer.ok && answer.type === "basic") event.waitUntil(keep(answer.clone()).catch(() => {}));
    return answer;
  };
  event.respondWith(fetch(request).then(fetched, known));
});
