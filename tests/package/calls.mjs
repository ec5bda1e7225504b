// Calls functions of the package: standard input lists them as [name, ...arguments], standard output what each came to.
import { readFileSync } from "node:fs";
import * as pipeplan from "pipeplan";

const call = ([name, ...given]) => {
  try {
    return { ok: pipeplan[name](...given) };
  } catch (error) {
    return { error: error.message, faults: error.faults, place: error.place };
  }
};
process.stdout.write(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(call)));
