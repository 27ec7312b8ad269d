import { useQuery } from '@tanstack/react-query'
import { useRef, useState } from 'react'
import { tunery } from '../../lib/api.ts'
import { classes } from '../../lib/classes.ts'
import { datasetChoice } from '../../lib/datasets.ts'
import { hasValidation } from '../../lib/jobs.ts'
import { useModelNames } from '../../lib/names.ts'
import { type Content, picturesOf, textOf } from '../../lib/pictures.ts'
import { Button } from '../../ui/button.tsx'
import { type Choice, Combobox } from '../../ui/choices.tsx'
import { Disclosure } from '../../ui/disclosure.tsx'
import { Badge, EmptyState, Notice, Progress } from '../../ui/feedback.tsx'
import { Field, NumberInput } from '../../ui/field.tsx'
import { Card } from '../../ui/layout.tsx'
import { Thumbnails } from '../../ui/pictures.tsx'
import { Table } from '../../ui/table.tsx'
import { ask, type Message, requestOf } from './ask.ts'
import type { Answer, Column, Parameters } from './state.ts'

interface Row {
  row: number
  messages: Message[]
  expected: string
  answers: Record<string, Answer>
}

interface RowsPanelProps {
  columns: readonly Column[]
  parameters: Parameters
  /** The dataset to begin with, or the job whose held-out rows are meant. */
  of: string | undefined
}

/** Asks the models rows of a dataset, or those that a job held out, and shows the answers beside the known ones. */
export function RowsPanel({ columns, parameters, of }: RowsPanelProps) {
  const [source, setSource] = useState<string | null>(of ?? null)
  const [count, setCount] = useState<number | null>(20)
  const choices = useSources()
  const { run, stop, running, progress, problem, rows, asked } = useRun(columns, parameters, source, count ?? 20)
  return (
    <Card>
      <Disclosure summary="Run on dataset rows" open={of !== undefined}>
        <div className="grid gap-4 pt-4">
          <p className="text-sm text-muted">
            Sends each row's prompt to every model above. For scored results, create an evaluation.
          </p>
          <div className="grid items-end gap-3 sm:grid-cols-[minmax(0,1fr)_9rem_auto]">
            <Field label="Dataset" help="Held-out rows show how the model handles prompts it was not trained on.">
              <Combobox value={source} onChange={setSource} choices={choices} placeholder="Choose a dataset" />
            </Field>
            <Field label="Rows">
              <NumberInput value={count} onChange={setCount} min={1} max={100} />
            </Field>
            {running ? (
              <Button onClick={stop}>Stop</Button>
            ) : (
              <Button variant="primary" disabled={!source} onClick={() => void run()}>
                Run
              </Button>
            )}
          </div>
          {problem && <Notice tone="bad">{problem}</Notice>}
          {running && <Progress value={progress} label="Rows answered" />}
          {rows.length > 0 && <Answers rows={rows} asked={asked} />}
        </div>
      </Disclosure>
    </Card>
  )
}

/** Asks the models. */
function useRun(columns: readonly Column[], parameters: Parameters, source: string | null, count: number) {
  const [rows, setRows] = useState<Row[]>([])
  const [asked, setAsked] = useState<readonly Column[]>([])
  const [done, setDone] = useState(0)
  const [running, setRunning] = useState(false)
  const [problem, setProblem] = useState<string>()
  const ended = useRef<AbortController>(undefined)

  async function run(): Promise<void> {
    const models = columns.filter(({ model }) => model)
    if (!source || models.length === 0) return setProblem('Choose a dataset and a model.')
    const controller = new AbortController()
    ended.current = controller
    setProblem(undefined)
    setRunning(true)
    setDone(0)
    setAsked(models)
    try {
      const [page, options] = [{ limit: Math.min(100, count) }, { signal: controller.signal }]
      const found = await (isJob(source)
        ? tunery.jobs.heldOut(source, page, options)
        : tunery.datasets.rows(source, page, options))
      if (found.items.length === 0)
        setProblem(isJob(source) ? 'This job held out no rows.' : 'This dataset has no rows.')
      const rows = found.items.map(toRow)
      setRows(rows)
      const waiting = rows.flatMap((row) => models.map((column) => ({ row, column })))
      const worker = async () => {
        for (let next = waiting.shift(); next && !controller.signal.aborted; next = waiting.shift()) {
          const { row, column } = next
          const answer = await ask(requestOf(column.model, row.messages, parameters), controller.signal, () => {})
          row.answers = { ...row.answers, [column.id]: answer }
          setRows([...rows])
          setDone((before) => before + 1)
        }
      }
      // Two at once: enough to keep the engine busy, few enough for others.
      await Promise.all([worker(), worker()])
    } catch (error) {
      if (!controller.signal.aborted) setProblem((error as Error).message)
    } finally {
      setRunning(false)
    }
  }

  const total = rows.length * asked.length
  const stop = () => ended.current?.abort()
  return { run, stop, running, progress: total > 0 ? done / total : null, problem, rows, asked }
}

/** A row whose last message, if it is an answer, is the expected one. */
function toRow({ row, messages }: { row: number; messages?: unknown }): Row {
  const all = (messages ?? []) as { role: string; content: unknown }[]
  const last = all.at(-1)
  const prompt = last?.role === 'assistant' ? all.slice(0, -1) : all
  return {
    row,
    messages: prompt.map(({ role, content }) => ({
      role: role as Message['role'],
      // Pictures stay where the row has them.
      content: picturesOf(content).length > 0 ? (content as Content) : textOf(content),
    })),
    expected: last?.role === 'assistant' ? textOf(last.content) : '',
    answers: {},
  }
}

/** Undefined while there is no answer, or nothing to compare it with. */
function isRight(row: Row, id: string): boolean | undefined {
  const answer = row.answers[id]
  return answer && row.expected !== '' ? answer.text.trim() === row.expected.trim() : undefined
}

function Answers({ rows, asked }: { rows: readonly Row[]; asked: readonly Column[] }) {
  const nameOf = useModelNames()
  return (
    <>
      <ul className="flex flex-wrap gap-2 text-sm" aria-live="polite">
        {asked.map(({ id, model }) => {
          const judged = rows.map((row) => isRight(row, id)).filter((verdict) => verdict !== undefined)
          const right = judged.filter(Boolean).length
          return (
            <li key={id}>
              <Badge tone={right === judged.length ? 'good' : 'neutral'}>
                {nameOf(model)}: {right} of {judged.length} match
              </Badge>
            </li>
          )
        })}
      </ul>
      <div className="-mx-4">
        <Table
          label="Answers by row"
          rows={rows}
          rowId={({ row }) => String(row)}
          empty={<EmptyState compact title="There are no rows" />}
          columns={[
            { id: 'row', header: 'Row', cell: ({ row }) => row, align: 'right' },
            {
              id: 'prompt',
              header: 'Prompt',
              from: 'md',
              width: '18rem',
              cell: ({ messages }) => (
                <div className="grid gap-1">
                  <Thumbnails
                    urls={messages.flatMap(({ content }) => picturesOf(content))}
                    name="of the row"
                    size="sm"
                  />
                  <Clamped text={textOf(messages.at(-1)?.content)} />
                </div>
              ),
            },
            { id: 'expected', header: 'Expected', cell: ({ expected }) => <Clamped text={expected} /> },
            ...asked.map(({ id, model }) => ({
              id,
              header: nameOf(model),
              cell: (row: Row) => (
                <Clamped
                  text={row.answers[id]?.error ?? row.answers[id]?.text ?? '…'}
                  tone={isRight(row, id) === undefined ? undefined : isRight(row, id) ? 'good' : 'bad'}
                />
              ),
            })),
          ]}
        />
      </div>
    </>
  )
}

const isJob = (source: string) => source.startsWith('job_')

/** What jobs held out, newest first, then the datasets. */
function useSources(): Choice[] {
  const jobs = useQuery({
    queryKey: ['jobs', 'list', 'held-out'],
    queryFn: ({ signal }) => tunery.jobs.list({ limit: 50, status: 'completed' }, { signal }),
  })
  const datasets = useQuery({
    queryKey: ['datasets', 'list', 'choices'],
    queryFn: ({ signal }) => tunery.datasets.list({ limit: 100 }, { signal }),
  })
  return [
    ...(jobs.data?.items ?? [])
      .filter(hasValidation)
      .map(({ id, name }) => ({ value: id, label: `Held-out rows of ${name}` })),
    ...(datasets.data?.items ?? []).map((dataset) => datasetChoice(dataset, datasets.data!.items)),
  ]
}

/** More is out of sight. */
const clampedMax = 2000

const Clamped = ({ text, tone }: { text: string; tone?: 'good' | 'bad' | undefined }) => (
  <span
    title={text.slice(0, clampedMax)}
    className={classes(
      'line-clamp-3 max-w-80 wrap-anywhere whitespace-pre-wrap',
      tone === 'good' && 'text-good',
      tone === 'bad' && 'text-bad',
    )}
  >
    {text.slice(0, clampedMax)}
  </span>
)
