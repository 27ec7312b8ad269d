// Runs test files in this one process, each as a suite: `node tests/support/together.ts FILE…`. With
// `--test-isolation=none` the hooks of a file would be those of the whole process: all services would start before the
// first test and stop after the last, and each takes CPU time meanwhile. A file cannot have an `await` at its top.
import { createRequire } from 'node:module'
import path from 'node:path'
import { withAsyncHook } from './without-async-hooks.ts'

const { describe } = await import('node:test')
const load = createRequire(import.meta.url)
withAsyncHook(() => {
  for (const file of process.argv.slice(2)) describe(path.basename(file, '.test.ts'), () => load(path.resolve(file)))
})
