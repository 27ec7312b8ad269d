// What was tried of each family of models: the results of `npm run test:families`.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { z } from 'zod'
import { root } from '../../../lib/root.ts'

/** What was tried of a family, and what came of it: `yes`, or the sentence that a user gets. */
type Tried = Record<string, string>

const Families = z.record(z.string(), z.record(z.string(), z.string()))

/** The rows of docs/reference/families.json by family, as transformers names it; none where the file is not there. */
export function readFamilies(file = path.join(root, 'docs/reference/families.json')): ReadonlyMap<string, Tried> {
  try {
    return new Map(Object.entries(Families.parse(JSON.parse(readFileSync(file, 'utf8')))))
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return new Map()
    throw new Error(`${file} is not a table of families: ${(error as Error).message}`)
  }
}
