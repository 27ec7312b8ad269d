// Datasets: upload, check, look at.
import { z } from 'zod'
import type { Columns } from '../../sdk/index.ts'
import { ToolError } from '../errors.ts'
import { creates, defineTool, reads } from './tool.ts'

/** Characters of a dataset that is given in the call itself. */
const inlineCharacters = 500_000
/** Findings of a validation, at most. */
const findingsMax = 30
/** What columns of a file can be; pictures do not come through assistants. */
const columnNames = [
  'messages',
  'tools',
  'system',
  'prompt',
  'input',
  'completion',
  'chosen',
  'rejected',
  'label',
] as const satisfies (keyof Columns)[]
/** Pieces of a row's preview, at most. */
const piecesMax = 200

const Dataset = z.object({
  id: z.string(),
  name: z.string(),
  format: z.string(),
  status: z.string().describe('preparing, ready or unreadable'),
  objectives: z
    .array(z.string())
    .describe('What its rows can teach: sft (answers), dpo or kto (preferences), reinforcement (prompts).'),
  rows: z.number(),
  size_mb: z.number(),
  created_at: z.string(),
})

const dataset_id = z.string().min(1).max(100).describe('The id of a dataset, ds_…')
const model_id = z
  .string()
  .min(1)
  .max(200)
  .optional()
  .describe('The base model whose tokens are meant. Default: the default base.')
const max_length = z.int().min(1).optional().describe('Tokens at which rows are cut, as in training.')

const upload = defineTool({
  name: 'upload_dataset',
  title: 'Upload a dataset',
  description:
    'Uploads training examples and returns the id of the dataset. Give the text in `content` (up to 500,000 ' +
    'characters), or, if this server runs on the machine of the user (stdio), the `path` of a file. One JSON object ' +
    'a line: {"messages":[{"role":"user","content":"…"},{"role":"assistant","content":"…"}]}, the answer last; for ' +
    'preferences {"prompt":"…","chosen":"…","rejected":"…"}; or CSV with a header of the columns prompt, completion ' +
    'and optionally system. Then call validate_dataset.',
  scopes: ['datasets:write'],
  input: z.strictObject({
    name: z.string().min(1).max(200).describe('A name, one line.'),
    content: z.string().min(1).max(inlineCharacters).optional().describe('The rows as text.'),
    path: z.string().min(1).max(4096).optional().describe('A .jsonl, .json, .csv, .parquet or .zip file instead.'),
    format: z.enum(['jsonl', 'csv']).optional().describe('Format of `content`. Default: detected.'),
    description: z.string().max(2000).optional(),
    columns: z
      .partialRecord(z.enum(columnNames), z.string().min(1).max(200))
      .optional()
      .describe(
        'For a file whose columns have other names: the name in the file for each column to read, such as ' +
          '{"prompt":"Question","completion":"Answer"}.',
      ),
  }),
  output: z.object({ dataset: Dataset }),
  annotations: creates,
  async run({ name, content, path, format, description, columns }, { tunery, signal, progress, readFile }) {
    if ((content === undefined) === (path === undefined))
      throw new ToolError('invalid_request', 'Give either `content` or `path`.')
    let file: string | File
    if (path === undefined) file = content!
    else if (readFile) file = await readFile(path)
    else
      throw new ToolError(
        'path_not_available',
        'This server is reached over HTTP and reads no files. Give the rows in `content`, or let the user upload the ' +
          'file.',
      )
    const dataset = await tunery.datasets.upload(
      file,
      { name, description, format, columns },
      {
        signal,
        onProgress: ({ sent_bytes, total_bytes }) =>
          progress(`${sent_bytes} of ${total_bytes} bytes sent`, total_bytes > 0 ? sent_bytes / total_bytes : 0),
      },
    )
    return { summary: `Uploaded as ${dataset.id}, ${dataset.rows} rows. Next: validate_dataset.`, data: { dataset } }
  },
})

const Finding = z.object({ line: z.number(), code: z.string(), message: z.string() })

const validate = defineTool({
  name: 'validate_dataset',
  title: 'Validate a dataset',
  description:
    'Checks whether every row can be trained on. Lists what is wrong and what may be (duplicates, conflicting ' +
    'answers, rows that will be cut), with the line of each, and counts tokens. Mend the rows and upload again where ' +
    'it is not valid.',
  scopes: ['datasets:read'],
  input: z.strictObject({ dataset_id, model_id, max_length }),
  output: z.object({
    valid: z.boolean(),
    rows: z.number(),
    error_count: z.number(),
    errors: z.array(Finding).describe(`The first ${findingsMax}.`),
    warning_count: z.number(),
    warnings: z.array(Finding).describe(`The first ${findingsMax}.`),
    duplicates: z.number().nullable(),
    conflicts: z.number().nullable(),
    tokens: z
      .object({
        model_id: z.string(),
        total: z.number(),
        longest: z.number(),
        max_length: z.number(),
        cut_rows: z.number(),
        no_learned_rows: z.number(),
      })
      .nullable()
      .describe('Null: they could not be counted.'),
  }),
  annotations: { ...reads, idempotentHint: true },
  async run({ dataset_id, ...query }, { tunery, signal }) {
    const validation = await tunery.datasets.validate(dataset_id, query, { signal })
    const { valid, total_samples: rows, error_count = 0, warning_count = 0 } = validation
    return {
      summary: `${valid ? 'Valid' : 'Not valid'}: ${rows} rows, ${error_count} errors, ${warning_count} warnings.`,
      data: {
        valid,
        rows,
        error_count,
        errors: (validation.issues ?? []).slice(0, findingsMax),
        warning_count,
        warnings: (validation.warnings ?? []).slice(0, findingsMax),
        duplicates: validation.duplicates ?? null,
        conflicts: validation.conflicts ?? null,
        tokens: validation.tokens ?? null,
      },
    }
  },
})

const previewRow = defineTool({
  name: 'preview_row',
  title: 'Preview a row as the trainer sees it',
  description:
    'One row as the exact text that the trainer sees, in pieces, each learned or only read as context. Use it to ' +
    'check that the answers are learned and nothing is cut.',
  scopes: ['datasets:read'],
  input: z.strictObject({
    dataset_id,
    row: z.int().min(1).default(1).describe('Its number, counted from 1.'),
    model_id,
    max_length,
  }),
  output: z.object({
    model_id: z.string(),
    row: z.number(),
    sequences: z.array(
      z.object({
        pieces: z.array(z.object({ learned: z.boolean(), tokens: z.number(), text: z.string() })),
        cut_tokens: z.number().describe('How many more there are, beyond `max_length`.'),
        left_out_pieces: z.number().describe('Pieces that are not here, as there are too many.'),
      }),
    ),
  }),
  annotations: { ...reads, idempotentHint: true },
  async run({ dataset_id, ...query }, { tunery, signal }) {
    const preview = await tunery.datasets.preview(dataset_id, query, { signal })
    const sequences = preview.sequences.slice(0, 20).map(({ tokens, cut_tokens }) => {
      const pieces: { learned: boolean; tokens: number; text: string }[] = []
      for (const { text, trained } of tokens) {
        const last = pieces.at(-1)
        if (last?.learned === trained) {
          last.tokens++
          last.text += text
        } else pieces.push({ learned: trained, tokens: 1, text })
      }
      return { pieces: pieces.slice(0, piecesMax), cut_tokens, left_out_pieces: Math.max(0, pieces.length - piecesMax) }
    })
    const learned = preview.sequences.flatMap(({ tokens }) => tokens).filter(({ trained }) => trained).length
    return {
      summary: `Row ${preview.row}: ${learned} tokens are learned.`,
      data: { model_id: preview.model_id, row: preview.row, sequences },
    }
  },
})

/** The input of every list. */
export const listInput = {
  limit: z.int().min(1).max(50).default(20),
  after: z.string().max(100).optional().describe('`next_after` of the page before.'),
}

/** The end of a page. */
export const pageEnd = <Item extends { id: string }>({ items, has_more }: { items: Item[]; has_more: boolean }) => ({
  next_after: has_more ? (items.at(-1)?.id ?? null) : null,
})
export const nextAfter = z
  .string()
  .nullable()
  .describe('Give it as `after` for the next page. Null: this is the last one.')

const list = defineTool({
  name: 'list_datasets',
  title: 'List datasets',
  description: 'The datasets of the account, newest first.',
  scopes: ['datasets:read'],
  input: z.strictObject({ ...listInput, name: z.string().min(1).max(200).optional().describe('Text in the name.') }),
  output: z.object({ datasets: z.array(Dataset), next_after: nextAfter }),
  annotations: { ...reads, idempotentHint: true },
  async run(query, { tunery, signal }) {
    const page = await tunery.datasets.list(query, { signal })
    return { summary: `${page.items.length} datasets.`, data: { datasets: page.items, ...pageEnd(page) } }
  },
})

export const datasetTools = [upload, validate, previewRow, list]
