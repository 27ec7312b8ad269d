// `eval`: is the new model better?

import { readFileSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { CreateEvaluationInput, Evaluation, EvaluationRow, GradersInput } from '../../sdk/index.ts'
import { CommandError, Interrupted, UsageError } from '../support/errors.ts'
import { typed } from '../support/invocation.ts'
import { type GlobalOptions, type Program, runs, wholeNumber } from '../support/options.ts'
import { createBar, note, show, showList } from '../support/output.ts'
import { type Connection, connect } from '../support/service.ts'
import { bar, clean, cut, number, oneLine, paint, table, time } from '../support/text.ts'
import { first, type ListOptions, listOptions, pageOf } from './lists.ts'
import { callableOf, idOf } from './named.ts'

/** Between two looks at a running evaluation. */
const poll_ms = 1000

interface EvalOptions extends GlobalOptions {
  dataset?: string
  graders?: string
  baseline?: string
  heldOutBy?: string
  rows?: number
  name?: string
  wait?: boolean
}

export function addEvaluationCommands(program: Program): void {
  const group = program
    .command('eval')
    .description('let models answer the rows of a dataset, and score the answers')
    .usage('<model> --dataset <dataset> --graders <file> | show|list|cancel|delete …')
  runs(
    group
      .command('run', { isDefault: true })
      .description('evaluate a model, beside a baseline; `eval MODEL` is the same')
      .argument('<model>', 'a model, a base, or the name of a deployment')
      .option('--dataset <dataset>', 'the rows')
      .option(
        '--graders <file>',
        'JSON: a list of graders; or Python that defines grade(sample, item); docs/guides/evaluations.md',
      )
      .option('--baseline <model>', 'a model that answers the same rows')
      .option('--held-out-by <job>', 'only the rows that this job held out of the dataset')
      .option('--rows <count>', 'so many rows, always the same ones', wholeNumber('--rows', 1))
      .option('--name <name>', 'of the evaluation')
      .option('--wait', 'wait for its end and show the result'),
    evaluate,
  )
  runs(
    group
      .command('show')
      .description('the result, and the rows that got worse first')
      .argument('<evaluation>', 'id of the evaluation')
      .option('--rows <count>', 'how many rows', wholeNumber('--rows', 0), 5),
    showOne,
  )
  runs(listOptions(group.command('list').description('list the evaluations, newest first')), list)
  runs(
    group
      .command('cancel')
      .description('cancel an evaluation; what is scored is kept')
      .argument('<evaluation>', 'its id'),
    async (id: string, options: GlobalOptions) => {
      const cancelled = await connect(options).tunery.evaluations.cancel(id)
      show(options, cancelled, `${id} is ${cancelled.status}.`)
    },
  )
  runs(
    group.command('delete').description('delete an evaluation that has ended').argument('<evaluation>', 'its id'),
    async (id: string, options: GlobalOptions) =>
      show(options, await connect(options).tunery.evaluations.delete(id), `Deleted ${id}.`),
  )
}

async function evaluate(modelName: string, options: EvalOptions): Promise<void> {
  const { graders, rows, name } = options
  if (!options.dataset || !graders)
    throw new UsageError(`Give the rows and the graders: ${typed('eval MODEL --dataset DATASET --graders FILE.json')}`)
  const connection = connect(options)
  const { tunery } = connection
  const [model, dataset] = [await callableOf(tunery, modelName), await idOf(tunery, 'dataset', options.dataset)]
  const baseline = options.baseline && (await callableOf(tunery, options.baseline))
  const heldOutBy = options.heldOutBy && (await idOf(tunery, 'job', options.heldOutBy))
  const body: CreateEvaluationInput = {
    model,
    dataset,
    graders: readGraders(graders),
    ...(baseline !== undefined && { baseline }),
    ...(heldOutBy !== undefined && { held_out_by: heldOutBy }),
    ...(rows !== undefined && { rows }),
    ...(name !== undefined && { name }),
  }
  const created = await connection.tunery.evaluations.create(body)
  const warning = trainedOn(created)
  if (warning && !options.json) note(warning)
  if (!options.wait)
    return show(
      options,
      created,
      `${created.id} is ${created.status}. '${typed(`eval show ${created.id}`)}' has the result.`,
    )
  const ended = await wait(connection, created)
  show(options, ended, () => describe(ended))
  if (ended.status !== 'completed')
    throw new CommandError(`${ended.id} is ${ended.status}${ended.error ? `: ${ended.error.message}` : '.'}`)
  if (!options.json) note(`'${typed(`eval show ${ended.id}`)}' shows the rows that got worse.`)
}

/** What makes a score worth little. */
const trainedOn = ({ trained_rows, rows }: Evaluation): string | undefined =>
  trained_rows
    ? `Warning: the model was trained on ${number(trained_rows)} of these ${number(rows)} rows, so its score says ` +
      'little about new ones. Evaluate on other rows, or on those that its job held out: --held-out-by JOB.'
    : undefined

function readGraders(file: string): GradersInput {
  let value: unknown
  try {
    const text = readFileSync(file, 'utf8')
    if (file.endsWith('.py')) return [{ type: 'python', name: path.basename(file, '.py').slice(0, 64), source: text }]
    value = JSON.parse(text)
  } catch (error) {
    throw new UsageError(
      `${file} cannot be read as ${file.endsWith('.py') ? 'Python' : 'JSON'}: ${(error as Error).message}`,
    )
  }
  // One grader, or an object as the request has it, is a list of graders too.
  const list = Array.isArray(value) ? value : ((value as { graders?: unknown } | null)?.graders ?? [value])
  if (!Array.isArray(list) || list.some((entry) => typeof entry !== 'object' || entry === null))
    throw new UsageError(`${file} is not a list of graders: [{"type": "json_equal", "name": "fields"}]`)
  return list as GradersInput
}

async function wait({ tunery }: Connection, created: Evaluation): Promise<Evaluation> {
  const stop = new AbortController()
  const interrupt = () => (stop.signal.aborted ? process.exit(130) : stop.abort())
  process.on('SIGINT', interrupt)
  const progress = createBar(process.stderr, (share) => bar(share, 28, process.stderr))
  try {
    for (let evaluation = created; ; evaluation = await tunery.evaluations.get(created.id, { signal: stop.signal })) {
      if (!['queued', 'running'].includes(evaluation.status)) return evaluation
      const total = evaluation.rows * (evaluation.baseline === null ? 1 : 2)
      progress.show(total > 0 ? evaluation.done / total : 0, `${number(evaluation.done)} of ${number(total)} answers`)
      await sleep(poll_ms, undefined, { signal: stop.signal })
    }
  } catch (error) {
    if (!stop.signal.aborted) throw error
    throw new Interrupted(`${created.id} keeps running. '${typed(`eval show ${created.id}`)}' shows its result.`)
  } finally {
    progress.end()
    process.off('SIGINT', interrupt)
  }
}

async function showOne(id: string, options: GlobalOptions & { rows: number }): Promise<void> {
  const { tunery } = connect(options)
  const evaluation = await tunery.evaluations.get(await idOf(tunery, 'evaluation', id))
  const { items } =
    options.rows === 0
      ? { items: [] }
      : await first(tunery.evaluations.rows(evaluation.id, { limit: Math.min(100, options.rows) }), {
          limit: options.rows,
        })
  show(options, { ...evaluation, items }, () =>
    [describe(evaluation), ...items.map((row) => describeRow(row))].join('\n'),
  )
}

type Side = NonNullable<NonNullable<Evaluation['result']>['baseline']>
const share = (value: number) => `${(100 * value).toFixed(1)} %`

function describe(evaluation: Evaluation): string {
  const { id, name, status, error, rows, done, result, baseline } = evaluation
  const answers = rows * (baseline === null ? 1 : 2)
  const progress = status === 'running' ? `, ${number(done)} answers of ${number(answers)}` : ''
  const head = `${id}  ${clean(name)}  ${status}${progress}`
  if (!result) return error ? `${head}\n${error.message}` : head
  const sides: Side[] = [result.model, ...(result.baseline ? [result.baseline] : [])]
  const graders = Object.keys(result.model.graders)
  const interval = ({ score }: Side) => {
    if (score === null) return ''
    const { mean, low, high } = score
    return low === null || high === null ? share(mean) : `${share(mean)} (${share(low)} to ${share(high)})`
  }
  const columns = [
    { head: '', value: (side: Side) => (side === result.model ? 'model' : 'baseline') },
    { head: 'id', value: ({ model }: Side) => model ?? 'given answers', flexible: true },
    { head: 'score (95 %)', value: interval },
    { head: 'passed', value: ({ passed, rows }: Side) => `${number(passed)} of ${number(rows)}`, right: true },
    ...(graders.length > 1
      ? graders.map((grader) => ({
          head: grader,
          value: ({ graders }: Side) => (graders[grader] === undefined ? '' : share(graders[grader])),
          right: true,
        }))
      : []),
    { head: 'errors', value: ({ errors }: Side) => number(errors), right: true },
    {
      head: 'median',
      value: ({ latency_ms }: Side) => (latency_ms === null ? '' : `${latency_ms.p50} ms`),
      right: true,
    },
  ]
  const lines = [head, table(sides, columns)]
  lines.push(...graderProblems(sides))
  if (result.difference) lines.push(verdict(result.difference))
  const warning = trainedOn(evaluation)
  if (warning) lines.push(paint('yellow', warning))
  return lines.join('\n')
}

/** Graders that failed, and what judges took. */
function graderProblems(sides: Side[]): string[] {
  const failing = sides.flatMap(({ grader_figures = {} }) =>
    Object.entries(grader_figures).flatMap(([name, { answers, errors, last_error }]) =>
      errors > 0
        ? [`'${clean(name)}' failed on ${number(errors)} of ${number(answers)} answers: ${oneLine(last_error ?? '')}`]
        : [],
    ),
  )
  const judges = sides.flatMap(({ judges }) => (judges && judges.requests > 0 ? [judges] : []))
  const tokens = judges.reduce(
    (sum, { prompt_tokens, completion_tokens }) => sum + prompt_tokens + completion_tokens,
    0,
  )
  return [
    ...failing.map((line) => paint('yellow', cut(line, 500))),
    ...(judges.length > 0 ? [`Judges used ${number(tokens)} tokens.`] : []),
  ]
}

function verdict({
  mean,
  low,
  high,
  better,
  worse,
  equal,
  test,
}: NonNullable<NonNullable<Evaluation['result']>['difference']>) {
  const signed = (value: number) => `${value > 0 ? '+' : ''}${(100 * value).toFixed(1)}`
  const says =
    low === null || high === null
      ? 'too few rows to tell'
      : low > 0
        ? paint('green', 'better by more than chance')
        : high < 0
          ? paint('red', 'worse by more than chance')
          : 'no difference beyond chance'
  const interval = low === null || high === null ? '' : ` (${signed(low)} to ${signed(high)}, ${test})`
  return (
    `Difference: ${signed(mean)} points${interval}: ${says}. ${better} rows better, ${worse} worse, ${equal} ` +
    'equal.'
  )
}

function describeRow({ row, item, model, baseline, difference }: EvaluationRow): string {
  const line = (name: string, text: string) => `  ${paint('dim', name.padEnd(9))} ${cut(oneLine(text), 300)}`
  const scoreText = ({ score, error }: NonNullable<EvaluationRow['model']>) =>
    score === null ? `not scored: ${error?.message}` : share(score)
  const answer = (side: EvaluationRow['model']) =>
    side === null
      ? '(not answered yet)'
      : side.error && side.output === null
        ? `(${side.error.message})`
        : `${(side.output ?? JSON.stringify(side.tool_calls ?? null)) || '(empty)'}  [${scoreText(side)}]`
  const change = difference === null ? '' : `, ${difference > 0 ? '+' : ''}${(100 * difference).toFixed(1)} points`
  return [
    `\n${paint('bold', `Row ${row}`)}${change}`,
    ...(promptOf(item) ? [line('asked', promptOf(item)!)] : []),
    ...(typeof item.reference === 'string' ? [line('expected', item.reference)] : []),
    line('model', answer(model)),
    ...(baseline ? [line('baseline', answer(baseline))] : []),
  ].join('\n')
}

/** The last question of a row. */
function promptOf(item: Record<string, unknown>): string | undefined {
  if (!Array.isArray(item.messages)) return undefined
  const asked = (item.messages as { role?: string; content?: unknown }[]).findLast(({ role }) => role === 'user')
  return typeof asked?.content === 'string' ? asked.content : undefined
}

async function list(options: GlobalOptions & ListOptions): Promise<void> {
  const { items, more } = await first(connect(options).tunery.evaluations.list({ limit: pageOf(options) }), options)
  showList(
    options,
    items,
    [
      { head: 'id', value: ({ id }) => id },
      { head: 'name', value: ({ name }) => name, flexible: true },
      { head: 'status', value: ({ status }) => status },
      { head: 'rows', value: ({ rows }) => number(rows), right: true },
      {
        head: 'score',
        value: ({ result }) => (result?.model.score ? share(result.model.score.mean) : ''),
        right: true,
      },
      {
        head: 'baseline',
        value: ({ result }) => (result?.baseline?.score ? share(result.baseline.score.mean) : ''),
        right: true,
      },
      { head: 'created', value: ({ created_at }) => time(created_at) },
    ],
    { empty: `No evaluations yet. Start one: ${typed('eval MODEL --dataset DATASET --graders FILE')}`, more },
  )
}
