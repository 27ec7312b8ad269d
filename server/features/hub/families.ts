// What was tried of each family of models: the results of `npm run test:families`.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { z } from 'zod'
import { isMet } from '../../../contract/families.ts'
import { root } from '../../../lib/root.ts'

/** What was tried of a family, and what came of it: `yes`, or the sentence that a user gets. */
export type Tried = Record<string, string>

const Families = z.record(z.string(), z.record(z.string(), z.string()).and(z.object({ architecture: z.string() })))
const ofText = '_text'

/**
 * The rows of docs/reference/families.json by architecture, as transformers names it; none where the file is not there.
 * The language model of one that reads pictures has a name of its own: both have its row.
 */
export function readFamilies(file = path.join(root, 'docs/reference/families.json')): ReadonlyMap<string, Tried> {
  const rows = Map.groupBy(Object.entries(parse(file)), ([, { architecture }]) => architecture)
  const families = new Map([...rows].map(([architecture, each]) => [architecture, joined(each)]))
  for (const [architecture, row] of [...families]) {
    const whole = architecture.endsWith(ofText) ? architecture.slice(0, -ofText.length) : architecture
    for (const name of [whole, whole + ofText]) if (!families.has(name)) families.set(name, row)
  }
  return families
}

function parse(file: string): z.infer<typeof Families> {
  try {
    return Families.parse(JSON.parse(readFileSync(file, 'utf8')))
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return {}
    throw new Error(`${file} is not a table of families: ${(error as Error).message}`)
  }
}

/** Families of one architecture as one row: what did not work with some of them is told with the name of one. */
export function joined(rows: readonly (readonly [string, Tried])[]): Tried {
  const columns = [...new Set(rows.flatMap(([, row]) => Object.keys(row)))].filter((name) => name !== 'architecture')
  return Object.fromEntries(
    columns.map((column) => {
      const results = rows.flatMap(([name, row]) => (row[column] ? [{ name, result: row[column] }] : []))
      const [first] = results as [(typeof results)[0]]
      const failed = results.find(({ result }) => !isMet(result))
      const isOfAll = failed === undefined || results.every(({ result }) => !isMet(result))
      return [column, isOfAll ? first.result : `in part, not ${failed.name}: ${failed.result}`]
    }),
  )
}

/** Whether something may be tried with a family: unless it failed with each model that it was tried with. */
export const mayWork = (tried: Tried | undefined, what: string): boolean => {
  const result = tried?.[what]
  return result === undefined || isMet(result) || result.startsWith('in part')
}
