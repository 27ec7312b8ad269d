import { z } from 'zod'
import { Deleted, Description, DisplayName, digits, page, RowsQuery, SortedQuery, Time } from './common.ts'
import { objectives } from './hyperparameters.ts'
import { routesOf } from './route.ts'

export const DatasetFormat = z.enum(['jsonl', 'csv', 'parquet', 'huggingface'])
export type DatasetFormat = z.infer<typeof DatasetFormat>

/** What columns of a file can be; `docs/guides/prepare-data.md` says how each is read. */
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
  'image',
  'images',
] as const

export const Columns = z
  .partialRecord(z.enum(columnNames), z.string().min(1).max(200))
  .refine((columns) => Object.keys(columns).length > 0, { error: 'must name a column' })
  .refine((columns) => new Set(Object.values(columns)).size === Object.keys(columns).length, {
    error: 'names a column of the file twice; each column is one thing',
  })
export type Columns = z.infer<typeof Columns>

/** A form's field with JSON. */
const ColumnsField = z
  .string()
  .max(5000)
  .transform((text, context): Columns => {
    const result = Columns.safeParse(parsed(text))
    if (result.success) return result.data
    const [issue] = result.error.issues
    context.addIssue({
      code: 'custom',
      message:
        (issue?.code === 'custom' && issue.message) ||
        `must be JSON like {"prompt":"Question","completion":"Answer"}: of ${columnNames.join(', ')}, ` +
          'the name of the column in the file',
    })
    return z.NEVER
  })

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

export const Dataset = z.object({
  id: z.string(),
  name: z.string(),
  description: z.string(),
  format: DatasetFormat,
  status: z.enum(['preparing', 'ready', 'unreadable']).describe('Whether its rows have been read yet.'),
  objectives: z
    .array(z.enum(objectives))
    .describe(
      'What its rows can teach: answers (`sft`, rows of messages), which of two answers is better (`dpo`), or ' +
        'from rated answers (`kto`), or prompts alone (`reinforcement`, which takes the prompts of conversations and ' +
        'rated answers, too). Empty until they are read.',
    ),
  rows: z.int(),
  error_count: z.int().describe('How many of its rows cannot be trained on: jobs need 0. 0 until they are read.'),
  pictures: z
    .int()
    .describe('How many pictures its rows have. Only a base of the category `multimodal` learns from them.'),
  size_mb: z.number(),
  sha256: z.string().describe('SHA-256 of the file as it was uploaded.'),
  columns: Columns.nullable().describe('The names of the columns in the file, where the upload said them.'),
  created_at: Time,
})
export type Dataset = z.infer<typeof Dataset>

/** Text fields of the upload form; the file is the part `file`. */
export const UploadFields = z.strictObject({
  name: DisplayName.optional().describe('Default: the name of the file.'),
  description: Description.default(''),
  format: DatasetFormat.optional().describe(
    'Default: what the first bytes of the file are, else what its name ends in, else jsonl.',
  ),
  columns: ColumnsField.optional().describe(
    'JSON that maps each column to read to its name in the file, such as ' +
      '`{"prompt":"Question","completion":"Answer"}`. For files whose columns have other names; columns that it ' +
      'leaves out are not read.',
  ),
  hf_token: z
    .string()
    .min(1)
    .max(500)
    .optional()
    .describe(
      'For a dataset of the Hugging Face Hub that is not public: your own token. It is used once and never stored.',
    ),
})

export type UploadFields = z.infer<typeof UploadFields>

export const DatasetIssue = z.object({
  line: z
    .int()
    .describe(
      'The line of the uploaded file, counted from 1, where a row begins; ' +
        'of formats without lines (parquet, huggingface) the number of the row.',
    ),
  code: z.string().describe('Stable.'),
  message: z.string(),
  first_line: z.int().optional().describe('The line that a duplicate or a conflict is like.'),
})

const Tokens = z.object({
  model_id: z.string().describe('The base whose tokens these are.'),
  total: z.int(),
  counted_rows: z.int().describe('Number of rows in these figures: all valid ones.'),
  longest: z.int(),
  bounded_rows: z
    .int()
    .describe(
      'Rows so much longer than `max_length` that they were not counted to their end: ' +
        '`total`, `longest` and `cut_tokens` include a lower bound of them.',
    ),
  max_length: z.int().describe('Rows are cut at this many tokens.'),
  cut_rows: z.int().describe('Conversations are cut at their end, preferences at the front of their prompt.'),
  cut_tokens: z.int(),
  no_learned_rows: z
    .int()
    .describe('Rows without a token to learn; a warning gives the line of each, or an error if all rows are such.'),
  refused_rows: z.int().describe('Rows that the base’s chat template or tokenizer rejects; listed in errors.'),
  cut: z
    .array(
      z.object({
        line: DatasetIssue.shape.line,
        row: z.int().describe('Its number among the rows that could be read.'),
        tokens: z.int(),
        cut_tokens: z.int(),
        at_least: z.boolean().describe('Whether there are more than these.'),
      }),
    )
    .describe('The first of the rows that will be cut.'),
  histogram: z.array(z.object({ up_to: z.int().nullable(), rows: z.int() })).describe('Rows by length in tokens.'),
})

export const Validation = z.object({
  valid: z.boolean(),
  total_samples: z.int(),
  avg_tokens_per_sample: z
    .number()
    .optional()
    .describe('With the chat template and tokenizer of the requested base, or the default base.'),
  errors: z.array(z.string()).optional().describe('Each begins with the line it is about.'),
  error_count: z.int().optional().describe('How many rows are wrong; `errors` lists the first of them.'),
  issues: z.array(DatasetIssue).optional().describe('The same as `errors`, for programs.'),
  warnings: z.array(DatasetIssue).optional().describe('Findings that may be intended; the first of them.'),
  warning_count: z.int().optional(),
  duplicates: z.int().optional().describe('Rows that repeat an earlier row of the file, word for word.'),
  conflicts: z.int().optional().describe('Rows whose prompt is in an earlier row of the file, with another answer.'),
  tokens: Tokens.optional().describe('Tokens of the valid rows.'),
  tokens_unknown: z
    .string()
    .optional()
    .describe('Why tokens are missing: counting them took too long or too much memory.'),
})
export type Validation = z.infer<typeof Validation>

const IdParams = z.object({ dataset_id: z.string() })

const route = routesOf({ tag: 'Datasets' })
export const uploadDataset = route('POST', '/datasets/', {
  scope: 'datasets:write',
  summary: 'Upload a file of examples',
  consumes: 'multipart/form-data',
  form: UploadFields,
  responses: { 201: Dataset },
})
export const listDatasets = route('GET', '/datasets/', {
  scope: 'datasets:read',
  summary: 'The datasets of the account, newest first or as sorted',
  query: SortedQuery,
  responses: { 200: page(Dataset) },
})
export const getDataset = route('GET', '/datasets/{dataset_id}', {
  scope: 'datasets:read',
  summary: 'One dataset',
  params: IdParams,
  responses: { 200: Dataset },
})
export const changeDataset = route('PATCH', '/datasets/{dataset_id}', {
  scope: 'datasets:write',
  summary: 'Change the name or the description of a dataset',
  params: IdParams,
  body: z.strictObject({ name: DisplayName.optional(), description: Description.optional() }),
  responses: { 200: Dataset },
})
export const deleteDataset = route('DELETE', '/datasets/{dataset_id}', {
  scope: 'datasets:write',
  summary: 'Delete a dataset that no waiting or running job needs',
  params: IdParams,
  responses: { 200: Deleted },
})
export const validateDataset = route('POST', '/datasets/{dataset_id}/validate', {
  scope: 'datasets:read',
  summary: 'Check whether every row can be trained on, and list what is wrong',
  params: IdParams,
  query: z.strictObject({
    model_id: z.string().min(1).max(256).optional().describe('The base whose tokens are counted.'),
    max_length: digits(8)
      .optional()
      .describe(
        'Where rows are cut, as the `max_length` of a job; at most the context of the base. Default: that of a job.',
      ),
  }),
  body: z.strictObject({}).nullish(),
  responses: { 200: Validation },
})

export const DatasetRow = z.object({
  row: z.int().describe('Its number among the rows, counted from 1.'),
  line: z.int().describe('Its line in the uploaded file; of formats without lines the number of the row.'),
  messages: z
    .array(z.unknown())
    .nullable()
    .describe('The messages of a pair, with the chosen answer. Pictures are parts with data URLs.'),
  rejected: z.unknown().optional().describe('The rejected answer of a pair.'),
})
export type DatasetRow = z.input<typeof DatasetRow>

export const listDatasetRows = route('GET', '/datasets/{dataset_id}/rows', {
  scope: 'datasets:read',
  summary: 'The rows of a dataset as conversations, in their order',
  params: IdParams,
  query: RowsQuery,
  responses: { 200: page(DatasetRow) },
})

export const Preview = z.object({
  model_id: z.string(),
  row: z.int(),
  messages: z.array(z.unknown()),
  pictures: z
    .array(
      z.object({
        width: z.int().describe('In pixels, as the picture is looked at.'),
        height: z.int(),
        format: z.string().describe('jpeg, png, webp or gif.'),
        tokens: z.int().describe('How many it is for this base.'),
      }),
    )
    .describe('The pictures of `messages`, in their order.'),
  sequences: z
    .array(
      z.object({
        tokens: z.array(
          z.object({ id: z.int(), text: z.string(), trained: z.boolean().describe('Whether the loss counts it.') }),
        ),
        cut_tokens: z
          .int()
          .describe(
            'How many more there are, beyond the length at which rows are cut; of a row that is far longer, at least.',
          ),
      }),
    )
    .describe('What the trainer sees: one sequence, or one a turn where the template renders earlier turns otherwise.'),
})
export type Preview = z.input<typeof Preview>

export const previewDataset = route('GET', '/datasets/{dataset_id}/preview', {
  scope: 'datasets:read',
  summary: 'The exact tokens of a row as the trainer will see them, and which of them are learned',
  params: IdParams,
  query: z.strictObject({
    model_id: z.string().min(1).max(256).optional().describe('The base; default: the default base.'),
    max_length: digits(8).optional().describe('Where the row is cut, as the `max_length` of a job.'),
    row: digits(1).default(1).describe('The row, counted from 1. Default 1.'),
  }),
  responses: { 200: Preview },
})
