import { useQuery } from '@tanstack/react-query'
import { useRef, useState } from 'react'
import { tunery } from '../../lib/api.ts'
import { plural } from '../../lib/format.ts'
import { Button } from '../../ui/button.tsx'
import { type Choice, Combobox } from '../../ui/choices.tsx'
import { Disclosure } from '../../ui/disclosure.tsx'
import { Badge, EmptyState, Notice, Progress } from '../../ui/feedback.tsx'
import { Field, NumberInput } from '../../ui/field.tsx'
import { Card } from '../../ui/layout.tsx'
import { Table } from '../../ui/table.tsx'
import { ask, type Message, requestOf } from './ask.ts'
import type { Answer, Column, Parameters } from './state.ts'

interface Row {
  row: number
  messages: Message[]
  expected: string
  answers: Record<string, Answer>
}

const textOf = (content: unknown): string =>
  typeof content === 'string'
    ? content
    : Array.isArray(content)
      ? content.map((part) => (part as { text?: string }).text ?? '').join('')
      : ''

/** Asks the models the rows of a dataset, and shows their answers beside the one that stands there. */
export function RowsPanel({
  columns,
  parameters,
  datasetId,
}: {
  columns: readonly Column[]
  parameters: Parameters
  datasetId: string | undefined
}) {
  const [dataset, setDataset] = useState<string | null>(datasetId ?? null)
  const [count, setCount] = useState<number | null>(20)
  const [rows, setRows] = useState<Row[]>([])
  const [asked, setAsked] = useState<readonly Column[]>([])
  const [done, setDone] = useState(0)
  const [running, setRunning] = useState(false)
  const [problem, setProblem] = useState<string>()
  const stop = useRef<AbortController>(undefined)
  const datasets = useQuery({
    queryKey: ['datasets', 'list', 'choices'],
    queryFn: ({ signal }) => tunery.datasets.list({ limit: 100 }, { signal }),
  })
  const choices = datasets.data?.items.map(
    ({ id, name, rows: total }): Choice => ({ value: id, label: name, note: plural(total, 'row') }),
  )

  async function run(): Promise<void> {
    const models = columns.filter(({ model }) => model)
    if (!dataset || models.length === 0) return setProblem('Choose a dataset and a model.')
    const ended = new AbortController()
    stop.current = ended
    setProblem(undefined)
    setRunning(true)
    setDone(0)
    setAsked(models)
    try {
      const found = await tunery.datasets.rows(dataset, { limit: Math.min(100, count ?? 20) }, { signal: ended.signal })
      const made = found.items.map(({ row, messages }): Row => {
        const all = (messages ?? []) as { role: string; content: unknown }[]
        const last = all.at(-1)
        const prompt = last?.role === 'assistant' ? all.slice(0, -1) : all
        return {
          row,
          messages: prompt.map(({ role, content }) => ({ role: role as Message['role'], content: textOf(content) })),
          expected: last?.role === 'assistant' ? textOf(last.content) : '',
          answers: {},
        }
      })
      setRows(made)
      const waiting = made.flatMap((row) => models.map((column) => ({ row, column })))
      const worker = async () => {
        for (let next = waiting.shift(); next && !ended.signal.aborted; next = waiting.shift()) {
          const { row, column } = next
          const answer = await ask(requestOf(column.model, row.messages, parameters), ended.signal, () => {})
          row.answers = { ...row.answers, [column.id]: answer }
          setRows([...made])
          setDone((before) => before + 1)
        }
      }
      // Two at once: enough to keep the engine busy, few enough for others.
      await Promise.all([worker(), worker()])
    } catch (error) {
      if (!ended.signal.aborted) setProblem((error as Error).message)
    } finally {
      setRunning(false)
    }
  }

  const total = rows.length * asked.length
  const isRight = (row: Row, id: string) => {
    const answer = row.answers[id]
    return answer && row.expected !== '' ? answer.text.trim() === row.expected.trim() : undefined
  }
  return (
    <Card>
      <Disclosure summary="Ask all rows of a dataset" open={datasetId !== undefined}>
        <div className="grid gap-4 pt-4">
          <p className="text-sm text-muted">
            Each row's prompt goes to every model above. For scores by graders, with an interval, make an evaluation.
          </p>
          <div className="grid items-end gap-3 sm:grid-cols-[minmax(0,1fr)_9rem_auto]">
            <Field label="Dataset">
              <Combobox value={dataset} onChange={setDataset} choices={choices ?? []} placeholder="Choose a dataset" />
            </Field>
            <Field label="First rows">
              <NumberInput value={count} onChange={setCount} min={1} max={100} />
            </Field>
            {running ? (
              <Button onClick={() => stop.current?.abort()}>Stop</Button>
            ) : (
              <Button variant="primary" disabled={!dataset} onClick={() => void run()}>
                Ask
              </Button>
            )}
          </div>
          {problem && <Notice tone="bad">{problem}</Notice>}
          {running && <Progress value={total > 0 ? done / total : null} label="Rows answered" />}
          {rows.length > 0 && (
            <>
              <ul className="flex flex-wrap gap-2 text-sm" aria-live="polite">
                {asked.map(({ id, model }) => {
                  const judged = rows.map((row) => isRight(row, id)).filter((each) => each !== undefined)
                  const right = judged.filter(Boolean).length
                  return (
                    <li key={id}>
                      <Badge tone={right === judged.length ? 'good' : 'neutral'}>
                        {model}: {right} of {judged.length} as in the dataset
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
                  empty={<EmptyState compact title="The dataset has no rows" />}
                  columns={[
                    { id: 'row', header: 'Row', cell: ({ row }) => row, align: 'right' },
                    {
                      id: 'prompt',
                      header: 'Prompt',
                      from: 'md',
                      width: '18rem',
                      cell: ({ messages }) => <Clamped text={messages.at(-1)?.content ?? ''} />,
                    },
                    { id: 'expected', header: 'In the dataset', cell: ({ expected }) => <Clamped text={expected} /> },
                    ...asked.map(({ id, model }) => ({
                      id,
                      header: model,
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
          )}
        </div>
      </Disclosure>
    </Card>
  )
}

const Clamped = ({ text, tone }: { text: string; tone?: 'good' | 'bad' }) => (
  <span
    title={text}
    className={`line-clamp-3 max-w-80 break-words whitespace-pre-wrap ${tone === 'good' ? 'text-good' : tone === 'bad' ? 'text-bad' : ''}`}
  >
    {text}
  </span>
)
