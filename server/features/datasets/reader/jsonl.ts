import type { Columns } from '../../../../contract/datasets.ts'
import { readJsonl } from '../../../../lib/jsonl.ts'
import { columnsNeeded, columnsUnknown, listed, missingColumns, type ReadRow, rowMaker, Unreadable } from './columns.ts'

/** Reads a JSONL file whose objects have the columns of a table. */
export async function* readJsonLines(file: string, columns?: Columns): AsyncGenerator<ReadRow> {
  let line = 0
  for await (const json of readJsonl(file)) {
    line++
    const record = parse(json)
    if (!record) {
      yield { line, problem: ['invalid_json', 'is not a JSON object.'] }
      continue
    }
    const names = Object.keys(record)
    const missing = line === 1 ? missingColumns(columns, names) : undefined
    if (missing) throw new Unreadable('file_not_readable', missing, names)
    const makeRow = rowMaker(names, columns)
    if (makeRow) yield { line, row: makeRow(record) }
    else if (line === 1)
      throw columnsUnknown(
        columns,
        names,
        `The file's rows must have ${columnsNeeded}; the first has ${listed(names)}.`,
      )
    else yield { line, problem: ['columns_wrong', `must have ${columnsNeeded}.`] }
  }
}

function parse(json: string): Record<string, unknown> | undefined {
  try {
    const value = JSON.parse(json)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : undefined
  } catch {
    return undefined
  }
}
