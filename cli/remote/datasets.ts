// `datasets`: upload, check, look at and delete examples.
import { existsSync, openAsBlob, statSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import {
  type Columns,
  type Dataset,
  type DatasetFormat,
  isTuneryError,
  type Preview,
  type Tunery,
  type Validation,
} from '../../sdk/index.ts'
import { CommandError, UsageError } from '../support/errors.ts'
import { typed } from '../support/invocation.ts'
import { type GlobalOptions, type Program, runs, wholeNumber } from '../support/options.ts'
import { createBar, note, show, showList } from '../support/output.ts'
import { connect } from '../support/service.ts'
import { bar, bytes, clean, number, paint, percent, time } from '../support/text.ts'
import { first, type ListOptions, listOptions, pageOf } from './lists.ts'
import { confirmDeletion } from './models.ts'
import { idOf } from './named.ts'

/** Between two looks at a dataset whose rows are being read. */
const poll_ms = 300

export function addDatasetCommands(program: Program): void {
  const datasets = program.command('datasets').description('examples to train and evaluate on')
  runs(
    datasets
      .command('upload')
      .description('upload a file of examples: JSON lines, CSV, parquet, or a zip of a saved dataset folder')
      .argument('<file>', 'the file')
      .option('--name <name>', 'default: the name of the file')
      .option('--description <text>', 'what you want to remember of it')
      .option('--format <format>', 'jsonl, csv, parquet or huggingface; default: what the file is')
      .option(
        '--column <name=column>',
        'of a file whose columns have other names: prompt=Question; repeat it for each column that is read',
        columnOption,
      ),
    upload,
  )
  runs(
    datasets
      .command('validate')
      .description('check every row, and count the tokens; exit status 1 if rows are wrong')
      .argument('<dataset>', 'id of the dataset')
      .option('--model <base>', 'the base whose tokens are counted')
      .option('--max-length <tokens>', 'where rows are cut', wholeNumber('--max-length', 1)),
    validate,
  )
  runs(
    datasets
      .command('preview')
      .description('the exact tokens of a row as the trainer sees them; those that are learned are marked')
      .argument('<dataset>', 'id of the dataset')
      .option('--row <number>', 'the row, counted from 1', wholeNumber('--row', 1))
      .option('--model <base>', 'the base whose tokens they are')
      .option('--max-length <tokens>', 'where the row is cut', wholeNumber('--max-length', 1)),
    preview,
  )
  runs(
    listOptions(datasets.command('list').description('list the datasets, newest first')).option(
      '--name <text>',
      'those with this text in their name',
    ),
    list,
  )
  runs(
    datasets
      .command('delete')
      .description('delete a dataset that no waiting or running job needs')
      .argument('<dataset>', 'id of the dataset')
      .option('-y, --yes', 'do not ask'),
    remove,
  )
}

interface UploadOptions extends GlobalOptions {
  name?: string
  description?: string
  format?: string
  column?: Columns
}

/** Adds `name=column` to the columns that were given before it. The service says which names there are. */
function columnOption(option: string, before: Columns = {}): Columns {
  const [, name, column] = /^([^=]+)=(.+)$/s.exec(option) ?? []
  if (!name || !column) throw new UsageError(`--column must be like prompt=Question, not '${option}'.`)
  return { ...before, [name]: column }
}

async function upload(file: string, options: UploadOptions): Promise<void> {
  const { tunery } = connect(options)
  const dataset = await uploadFile(tunery, file, options)
  show(
    options,
    dataset,
    `${dataset.id}  ${number(dataset.rows)} rows  ${clean(dataset.name)}\n` +
      `Next: ${typed(`datasets validate ${dataset.id}`)}, or ${typed(`train ${dataset.id}`)}`,
  )
}

/** Uploads a file and waits until its rows are read. Throws a UsageError if they cannot be. */
export async function uploadFile(
  tunery: Tunery,
  file: string,
  { name, description, format, column }: UploadOptions,
  signal?: AbortSignal,
): Promise<Dataset> {
  const stats = existsSync(file) ? statSync(file) : undefined
  if (!stats) throw new UsageError(`There is no file ${path.resolve(file)}.`)
  if (!stats.isFile())
    throw new UsageError(`${path.resolve(file)} is not a file. A saved dataset folder is uploaded as a zip.`)
  const content = new File([await openAsBlob(file)], path.basename(file))
  const fields = { name, description, format: format as DatasetFormat | undefined, columns: column }
  const progress = createBar(process.stderr, (share) => bar(share, 28, process.stderr))
  try {
    const uploaded = await tunery.datasets.upload(content, fields, {
      signal,
      onProgress: ({ sent_bytes, total_bytes }) =>
        progress.show(sent_bytes / total_bytes, `Uploading ${bytes(sent_bytes)} of ${bytes(total_bytes)}`),
    })
    return await untilRead(tunery, uploaded, signal)
  } finally {
    progress.end()
  }
}

/** Waits until the rows of a dataset are read. Throws a UsageError if they cannot be. */
export async function untilRead(tunery: Tunery, uploaded: Dataset, signal?: AbortSignal): Promise<Dataset> {
  let dataset = uploaded
  while (dataset.status === 'preparing') {
    await sleep(poll_ms, undefined, { signal })
    dataset = await tunery.datasets.get(dataset.id, { signal })
  }
  if (dataset.status === 'ready') return dataset
  const { errors } = await tunery.datasets.validate(dataset.id, {}, { signal })
  throw new UsageError(`${dataset.id} cannot be read: ${errors?.[0] ?? 'its rows are in no known format.'}`)
}

/** Checks the rows of a dataset. Right after a service's first start, waits until what checks them is installed. */
export async function checkRows(
  tunery: Tunery,
  id: string,
  query: { model_id?: string | undefined; max_length?: number | undefined },
  signal?: AbortSignal,
) {
  await untilTrainingIsReady(tunery, signal)
  return tunery.datasets.validate(id, query, { signal })
}

/** Returns at once if a step of the installation has failed: what needs it says so, and what to do. */
async function untilTrainingIsReady(tunery: Tunery, signal?: AbortSignal): Promise<void> {
  for (let told = ''; ; await sleep(poll_ms, undefined, { signal })) {
    const { ready, steps } = await tunery.hub.setup.get({ signal }).catch((error) => {
      // A key without hub:read.
      if (isTuneryError(error, 'insufficient_permissions')) return { ready: true, steps: [] }
      throw error
    })
    if (ready || steps.some(({ status }) => status === 'failed')) return
    const title = steps.find(({ status }) => status !== 'done')?.title ?? ''
    if (title !== told) note(`Waiting for the training environment: ${title}`)
    told = title
  }
}

interface ValidateOptions extends GlobalOptions {
  model?: string
  maxLength?: number
}

async function validate(dataset: string, options: ValidateOptions): Promise<void> {
  const { tunery } = connect(options)
  const id = await idOf(tunery, 'dataset', dataset)
  await untilRead(tunery, await tunery.datasets.get(id)).catch((error) => {
    if (!(error instanceof UsageError)) throw error
  })
  const validation = await checkRows(tunery, id, { model_id: options.model, max_length: options.maxLength })
  show(options, validation, () => describeValidation(validation))
  if (!validation.valid) throw new CommandError(options.json ? '' : 'Mend these rows in the file, and upload it again.')
}

/** What is wrong, what may be, and how long the rows are. `most`: how many findings of each kind are listed. */
export function describeValidation(
  validation: Validation,
  out: NodeJS.WriteStream = process.stdout,
  most = Number.POSITIVE_INFINITY,
): string {
  const {
    errors = [],
    error_count = errors.length,
    warnings = [],
    warning_count = warnings.length,
    tokens,
  } = validation
  const more = (count: number, shown: number) => (count > shown ? [`  and ${number(count - shown)} more`] : [])
  return [
    validation.valid
      ? `${paint('green', 'Every row can be trained on', out)}: ${number(validation.total_samples)} rows.`
      : `${paint('red', `${number(error_count)} problems`, out)} in ${number(validation.total_samples)} rows:`,
    ...errors.slice(0, most).map((error) => `  ${clean(error)}`),
    ...more(error_count, Math.min(most, errors.length)),
    ...(warning_count > 0 ? [paint('yellow', `${number(warning_count)} rows to look at:`, out)] : []),
    ...warnings.slice(0, most).map(({ line, message }) => `  line ${line}: ${clean(message)}`),
    ...more(warning_count, Math.min(most, warnings.length)),
    ...(tokens
      ? [
          `${number(tokens.total)} tokens of ${tokens.model_id}, the longest row ${number(tokens.longest)}.`,
          ...(tokens.cut_rows > 0
            ? [
                `${number(tokens.cut_rows)} rows are longer than ${number(tokens.max_length)} tokens and will be ` +
                  `cut: ${number(tokens.cut_tokens)} tokens are lost. A larger max_length keeps them.`,
              ]
            : []),
          ...histogram(tokens.histogram, out),
        ]
      : []),
    ...(validation.tokens_unknown ? [validation.tokens_unknown] : []),
  ].join('\n')
}

function histogram(bins: { up_to: number | null; rows: number }[], out: NodeJS.WriteStream): string[] {
  const filled = bins.filter(({ rows }) => rows > 0)
  const most = Math.max(...filled.map(({ rows }) => rows))
  const labels = filled.map(({ up_to }) => (up_to === null ? 'more' : `up to ${number(up_to)}`))
  const width = Math.max(...labels.map(({ length }) => length))
  return filled.map(
    ({ rows }, index) => `  ${labels[index]!.padStart(width)}  ${bar(rows / most, 24, out)}  ${number(rows)} rows`,
  )
}

interface PreviewOptions extends ValidateOptions {
  row?: number
}

async function preview(dataset: string, options: PreviewOptions): Promise<void> {
  const { model, maxLength, row } = options
  const { tunery } = connect(options)
  const id = await idOf(tunery, 'dataset', dataset)
  const shown = await tunery.datasets.preview(id, { model_id: model, max_length: maxLength, row })
  show(options, shown, () => describePreview(shown))
}

/** Tokens that repeat more often are counted: those of a picture are hundreds of the same. */
const repeated_max = 4

/** The texts of tokens, learned or not, as they are shown. */
function textOf(tokens: Preview['sequences'][number]['tokens']): string {
  const shown: string[] = []
  for (let from = 0; from < tokens.length; ) {
    const { id, text } = tokens[from]!
    let to = from
    while (tokens[to]?.id === id) to++
    shown.push(to - from > repeated_max ? `${text}×${to - from}` : text.repeat(to - from))
    from = to
  }
  return shown.join('')
}

const describePicture = ({ width, height, format, tokens }: Preview['pictures'][number]) =>
  `[picture ${width}×${height} ${format.toUpperCase()}], ${number(tokens)} tokens`

function describePreview({ model_id, row, pictures, sequences }: Preview): string {
  const all = sequences.flatMap(({ tokens }) => tokens)
  const learned = all.filter(({ trained }) => trained).length
  // Where there are no colours, brackets mark what is learned.
  const marked = (text: string) => {
    const styled = paint(['green', 'bold'], text)
    return styled === text ? `[${text}]` : styled
  }
  const lines = sequences.flatMap(({ tokens, cut_tokens }) => {
    const runsOf: { trained: boolean; tokens: typeof tokens }[] = []
    for (const token of tokens) {
      const last = runsOf.at(-1)
      if (last?.trained === token.trained) last.tokens.push(token)
      else runsOf.push({ trained: token.trained, tokens: [token] })
    }
    return [
      '',
      runsOf
        .map((run) => ({ trained: run.trained, text: clean(textOf(run.tokens)) }))
        .map(({ trained, text }) => (trained ? marked(text) : text))
        .join(''),
      ...(cut_tokens > 0 ? [paint('yellow', `${number(cut_tokens)} tokens are cut here.`)] : []),
    ]
  })
  const share = all.length > 0 ? `, ${percent(learned / all.length)}` : ''
  return [
    `Row ${row} as ${model_id} reads it: ${number(all.length)} tokens, ${number(learned)} of them learned${share}.`,
    ...(learned === 0 ? [paint('red', 'Nothing of this row is learned.')] : []),
    ...pictures.map(describePicture),
    ...lines,
  ].join('\n')
}

async function list(options: GlobalOptions & ListOptions): Promise<void> {
  const { tunery } = connect(options)
  const { items, more } = await first(tunery.datasets.list({ limit: pageOf(options), name: options.name }), options)
  showList(
    options,
    items,
    [
      { head: 'id', value: ({ id }) => id },
      { head: 'name', value: ({ name }) => name, flexible: true },
      { head: 'rows', value: ({ rows }) => number(rows), right: true },
      { head: 'size', value: ({ size_mb }) => bytes(size_mb * 1e6), right: true },
      { head: 'teaches', value: ({ objectives }) => objectives.join(', ') },
      { head: 'status', value: ({ status }) => status },
      { head: 'uploaded', value: ({ created_at }) => time(created_at) },
    ],
    { empty: `No datasets yet. Upload one: ${typed('datasets upload FILE')}`, more },
  )
}

async function remove(dataset: string, options: GlobalOptions & { yes?: boolean }): Promise<void> {
  const { tunery } = connect(options)
  const id = await idOf(tunery, 'dataset', dataset)
  await confirmDeletion(id, options)
  show(options, await tunery.datasets.delete(id), `Deleted ${id}.`)
}
