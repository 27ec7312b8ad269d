// Rows with pictures need models that read them: refused before an evaluation begins, not at each of its rows.
import { ApiError } from '../../../contract/errors.ts'
import { readNumberedJsonl } from '../../../lib/jsonl.ts'
import { isPicture } from '../datasets/index.ts'
import { lineOf, pictureType, type RowFile, requestOf, type Template } from './items.ts'

/** A model of an evaluation. `pictures`: whether it reads them; undefined if only its server knows. */
export interface Reader {
  name: string
  pictures: boolean | undefined
  field: 'model' | 'baseline'
}

/** Whether a model is shown pictures with this row. Templates of texts show none. */
export function showsPictures(row: number, json: string, template: Template | undefined, canonical = false): boolean {
  if (Array.isArray(template) || !json.includes(pictureType)) return false
  try {
    const { messages } = requestOf({ row, item: lineOf(row, json, canonical).pictured }, template)
    return messages.some((message) => {
      const { content } = Object(message)
      return Array.isArray(content) && content.some(isPicture)
    })
  } catch {
    // What is wrong with the row is reported when it is read.
    return false
  }
}

/** The first row of those wanted with which a model is shown pictures. */
export async function firstPictured(
  { path, canonical }: RowFile,
  numbers: ReadonlySet<number>,
  template: Template | undefined,
): Promise<number | undefined> {
  if (Array.isArray(template)) return undefined
  let row = 0
  for await (const { json } of readNumberedJsonl(path))
    if (numbers.has(++row) && showsPictures(row, json, template, canonical)) return row
  return undefined
}

/** Throws invalid_request if a model that reads text only would be shown pictures. `pictured` finds a row with one. */
export async function requireSight(
  readers: readonly Reader[],
  pictured: () => Promise<number | undefined>,
): Promise<void> {
  const blind = readers.find(({ pictures }) => pictures === false)
  const row = blind && (await pictured())
  if (!blind || row === undefined) return
  throw new ApiError(
    'invalid_request',
    `Row ${row} has pictures, and '${blind.name}' reads text only. Evaluate a model of the category 'multimodal' ` +
      '(GET /v1/hub/ lists the bases), choose rows without pictures, or give a template that asks with their texts.',
    { param: blind.field, details: { field: blind.field, row } },
  )
}
