// `./tunery import openai-evals`: evals that were exported from OpenAI's API become evals here. The answers of their
// runs are graded again, so that they can be compared with those of a model here.
import { readFileSync } from 'node:fs'
import { z } from 'zod'
import { evaluationRowsMax } from '../../contract/evaluations.ts'
import { similarityMetrics } from '../../contract/graders.ts'
import type { CreateEvalInput, CreateRun, Tunery } from '../../sdk/index.ts'
import { UsageError } from '../support/errors.ts'
import { typed } from '../support/invocation.ts'
import type { GlobalOptions } from '../support/options.ts'
import { connect } from '../support/service.ts'
import { explained } from './explained.ts'

interface ImportEvalsOptions extends GlobalOptions {
  judge?: string
  model?: string
  dryRun?: boolean
}

const Item = z.record(z.string(), z.unknown())
const Metadata = z.record(z.string(), z.string()).nullish()

const ExportedEval = z.looseObject({
  object: z.literal('eval'),
  id: z.string(),
  name: z.string().nullish(),
  metadata: Metadata,
  // `schema_`: as `model_dump` of the Python client writes it.
  data_source_config: z.looseObject({ type: z.string(), schema: Item.nullish(), schema_: Item.nullish() }),
  testing_criteria: z.array(z.looseObject({ type: z.string(), name: z.string() })),
})
const ExportedRun = z.looseObject({
  id: z.string(),
  name: z.string().nullish(),
  model: z.string().nullish(),
  data_source: z.looseObject({
    input_messages: Item.nullish(),
    source: z.looseObject({ content: z.array(z.looseObject({ item: Item })).nullish() }).nullish(),
  }),
  result_counts: z.looseObject({ passed: z.number(), failed: z.number() }).nullish(),
})
type ExportedRun = z.infer<typeof ExportedRun>
const ExportedOutput = z.looseObject({
  datasource_item: Item,
  sample: z
    .looseObject({
      output: z.array(z.looseObject({ content: z.string().nullish(), tool_calls: z.unknown().optional() })).nullish(),
    })
    .nullish(),
})
type ExportedOutput = z.infer<typeof ExportedOutput>

const Export = z.looseObject({
  eval: ExportedEval,
  rows: z.array(Item).nullish(),
  runs: z.array(z.looseObject({ run: ExportedRun, output_items: z.array(ExportedOutput).nullish() })).nullish(),
})
type Export = z.infer<typeof Export>
type Grader = Export['eval']['testing_criteria'][number]

/** Longest name of a grader here. */
const nameMax = 64

interface Imported {
  from: string
  eval: string
  /** Files with the rows. */
  rows: string[]
  runs: string[]
  differences: string[]
}

/** Makes the evals and their runs, and says what differs. Throws UsageErrors, also for what the service refuses. */
export const importOpenaiEvals = (files: string[], options: ImportEvalsOptions): Promise<void> =>
  explained(() => importEvals(files, options))

async function importEvals(files: string[], options: ImportEvalsOptions): Promise<void> {
  if (files.length === 0)
    throw new UsageError(
      `Give the exported evals: ${typed('import openai-evals FILE.json… [--judge MODEL] [--model MODEL]')}`,
    )
  const exports = files.map((file) => readExport(file))
  const { tunery } = connect(options)
  for (const name of [options.judge, options.model]) if (name !== undefined) await tunery.models.callable.get(name)
  const callable = new Set((await tunery.models.callable.list()).data.map(({ id }) => id))
  const judgeOf = (name: string) => options.judge ?? (callable.has(name) ? name : undefined)
  // All are read before the first is made: a file that cannot be imported stops the command with nothing done.
  const plans = exports.map((exported) => ({ exported, ...translate(exported, judgeOf) }))
  const imported: Imported[] = []
  for (const { exported, request, differences } of plans) {
    if (!options.json) {
      console.log(`${request.name ?? exported.eval.id}:`)
      for (const difference of differences) console.log(`- ${difference}`)
    }
    if (options.dryRun) continue
    const copied = await importOne(tunery, exported, request, options.model)
    imported.push({ ...copied, differences })
    const rows = copied.rows.length > 0 ? `, rows in ${copied.rows.join(', ')}` : ''
    if (!options.json) console.log(`  ${copied.eval}, ${copied.runs.length} runs${rows}`)
  }
  if (options.json) console.log(JSON.stringify(imported))
  else if (options.dryRun) console.log('Nothing was made. Leave out --dry-run to import.')
}

function readExport(file: string): Export {
  let value: unknown
  try {
    value = JSON.parse(readFileSync(file, 'utf8'))
  } catch (error) {
    throw new UsageError(`${file} cannot be read as JSON: ${(error as Error).message}`)
  }
  const isBare = (value as { object?: unknown } | null)?.object === 'eval'
  const read = Export.safeParse(isBare ? { eval: value } : value)
  if (read.success) return read.data
  const [issue] = read.error.issues
  throw new UsageError(
    `${file} is no exported eval: '${issue!.path.join('.') || 'the file'}': ${issue!.message}. It must be an eval of ` +
      'that API, or {eval, rows, runs: [{run, output_items}]} with what its API returns; see docs/openai.md.',
  )
}

/** The eval to create, and what will differ. Throws a UsageError if no grader can be taken over. */
function translate(
  { eval: source, runs }: Export,
  judgeOf: (name: string) => string | undefined,
): { request: CreateEvalInput; differences: string[] } {
  const differences: string[] = []
  const graders = source.testing_criteria.flatMap((grader) => graderOf(grader, judgeOf, differences) ?? [])
  if (graders.length === 0)
    throw new UsageError(
      `No grader of the eval '${source.name ?? source.id}' can be taken over: ${differences.join(' ')}`,
    )
  const { type, schema, schema_ } = source.data_source_config
  if (type !== 'custom') differences.push(`Its rows were ${type}; here they are those of its runs.`)
  if (runs?.length)
    differences.push('The answers of its runs are graded again here. Judged grades differ with the judge.')
  const schemaFields = (schema ?? schema_)?.properties
  const properties = (typeof schemaFields === 'object' && schemaFields !== null ? schemaFields : {}) as Record<
    string,
    Record<string, unknown>
  >
  const item_schema = (type === 'custom' ? properties.item : undefined) ?? {}
  return {
    request: {
      name: source.name ?? source.id,
      metadata: withOrigin(source.metadata, source.id),
      data_source_config: { type: 'custom', item_schema, include_sample_schema: 'sample' in properties },
      testing_criteria: graders,
    } as CreateEvalInput,
    differences,
  }
}

/** Up to 16 pairs: those of the eval go before. */
const withOrigin = (metadata: Record<string, string> | null | undefined, id: string) =>
  Object.keys(metadata ?? {}).length < 16 ? { ...metadata, imported_from: id } : metadata!

/** A grader without what is of that service alone; undefined, with a difference, if there is none like it here. */
function graderOf(
  { id: _, ...given }: Grader,
  judgeOf: (name: string) => string | undefined,
  differences: string[],
): object | undefined {
  const grader = withoutNulls({ ...given, name: given.name.slice(0, nameMax) }) as Grader
  if (grader.type === 'multi') {
    const parts = Object.entries((grader.graders ?? {}) as Record<string, Grader>)
    const taken = parts.map(([name, part]) => [name, graderOf(part, judgeOf, differences)] as const)
    const missing = taken.find(([, part]) => part === undefined)
    if (!missing) return { ...grader, graders: Object.fromEntries(taken) }
    differences.push(`The grader '${grader.name}' is left out with its part '${missing[0]}'.`)
    return undefined
  }
  const leftOut = (why: string) => void differences.push(`The grader '${grader.name}' is left out: ${why}.`)
  if (grader.type === 'python') return leftOut('no Python of clients is run')
  if (grader.type === 'text_similarity') {
    const metric = String(grader.evaluation_metric)
    return (similarityMetrics as readonly string[]).includes(metric) ? grader : leftOut(`'${metric}' is not offered`)
  }
  if (grader.type !== 'label_model' && grader.type !== 'score_model') return grader
  const judge = judgeOf(String(grader.model))
  if (judge === undefined)
    throw new UsageError(
      `'${grader.name}' is judged by '${grader.model}', which is not here. Give a model: --judge MODEL`,
    )
  if (judge !== grader.model) differences.push(`'${grader.name}' is judged by ${judge}, not ${grader.model}.`)
  return { ...grader, model: judge }
}

/** The clients for Python write fields that are not set as null. */
function withoutNulls(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutNulls)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value).flatMap(([key, field]) => (field === null ? [] : [[key, withoutNulls(field)]])),
  )
}

async function importOne(
  tunery: Tunery,
  exported: Export,
  request: CreateEvalInput,
  model: string | undefined,
): Promise<Omit<Imported, 'differences'>> {
  const uploaded: string[] = []
  const upload = async (rows: object[], name: string) => {
    const id = await uploadRows(tunery, rows, name)
    uploaded.push(id)
    return id
  }
  const created = await tunery.evals.create(request)
  try {
    const runs: string[] = []
    const start = async (run: CreateRun) => runs.push((await tunery.evals.runs.create(created.id, run)).id)
    for (const { run, output_items } of exported.runs ?? []) {
      if (!output_items?.length) continue
      const rows = output_items.map((output) => ({ item: output.datasource_item, sample: sampleOf(output) }))
      for (const part of partsOf(rows))
        await start({
          name: [run.name ?? run.id, run.model].filter(Boolean).join(', ').slice(0, 200),
          metadata: originOf(run),
          data_source: { type: 'jsonl', source: { type: 'file_id', id: await upload(part, run.id) } },
        })
    }
    const items = rowsOf(exported)
    const files: string[] = []
    for (const part of partsOf(items.map((item) => ({ item })))) files.push(await upload(part, exported.eval.id))
    const input_messages = exported.runs?.map(({ run }) => run.data_source.input_messages).findLast(Boolean)
    if (model !== undefined)
      for (const id of files)
        await start({
          name: `${model}, ${created.name}`.slice(0, 200),
          data_source: {
            type: 'completions',
            model,
            ...(input_messages && { input_messages: withoutNulls(input_messages) }),
            source: { type: 'file_id', id },
          },
        } as CreateRun)
    return { from: exported.eval.id, eval: created.id, rows: files, runs }
  } catch (error) {
    await removeAll(tunery, created.id, uploaded).catch((left: Error) =>
      console.error(`Not all could be removed again: ${left.message}`),
    )
    throw error
  }
}

/** The answer of an exported row, as graders read it. */
function sampleOf({ sample }: ExportedOutput): Record<string, unknown> {
  const last = sample?.output?.at(-1)
  return { output_text: last?.content ?? '', ...(Array.isArray(last?.tool_calls) && { output_tools: last.tool_calls }) }
}

function originOf({ id, model, result_counts }: ExportedRun): Record<string, string> {
  return {
    imported_from: id,
    ...(model && { model }),
    ...(result_counts && { passed_there: `${result_counts.passed}`, failed_there: `${result_counts.failed}` }),
  }
}

/** Each row once. */
function rowsOf({ rows, runs }: Export): object[] {
  const items = [
    ...(rows ?? []),
    ...(runs ?? []).flatMap(({ run, output_items }) => [
      ...(run.data_source.source?.content ?? []).map(({ item }) => item),
      ...(output_items ?? []).map(({ datasource_item }) => datasource_item),
    ]),
  ]
  return [...new Map(items.map((row) => [JSON.stringify(row), row])).values()]
}

function* partsOf<T>(rows: T[]): Generator<T[]> {
  for (let from = 0; from < rows.length; from += evaluationRowsMax) yield rows.slice(from, from + evaluationRowsMax)
}

async function uploadRows(tunery: Tunery, rows: object[], name: string): Promise<string> {
  const content = new File([rows.map((row) => JSON.stringify(row)).join('\n')], `${name}.jsonl`)
  return (await tunery.files.upload(content, { purpose: 'evals' })).id
}

async function removeAll(tunery: Tunery, eval_id: string, files: string[]): Promise<void> {
  for (const status of ['in_progress', 'queued'] as const) {
    const { items } = await tunery.evals.runs.list(eval_id, { limit: 100, status })
    // One may end meanwhile.
    for (const { id } of items) await tunery.evals.runs.cancel(eval_id, id).catch(() => {})
  }
  await tunery.evals.delete(eval_id)
  for (const id of files) await tunery.files.delete(id)
}
