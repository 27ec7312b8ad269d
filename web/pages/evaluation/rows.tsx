import { useQueryClient } from '@tanstack/react-query'
import { useEffect, useState } from 'react'
import type { Evaluation, EvaluationRow } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatNumber, none } from '../../lib/format.ts'
import { usePages } from '../../lib/pages.ts'
import { refresh_ms } from '../../lib/query.ts'
import { Badge, EmptyState, Loaded } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { LongText } from '../../ui/long-text.tsx'
import { Dialog } from '../../ui/popups.tsx'
import { Table } from '../../ui/table.tsx'
import { Segments } from '../../ui/toggles.tsx'

type Answer = NonNullable<EvaluationRow['model']>
type Filter = 'all' | 'worse' | 'better' | 'failed'

const fits: Record<Filter, (row: EvaluationRow) => boolean> = {
  all: () => true,
  worse: ({ difference }) => difference !== null && difference < 0,
  better: ({ difference }) => difference !== null && difference > 0,
  failed: ({ model }) => model !== null && !model.passed,
}

/** More is out of sight in a line of the table. */
const promptMax = 500

/** The last thing that was asked, as text. */
function promptOf(item: EvaluationRow['item']): string {
  const { messages, prompt, input } = item as {
    messages?: { role: string; content: unknown }[]
    prompt?: unknown
    input?: unknown
  }
  const asked = messages?.findLast(({ role }) => role === 'user')?.content ?? prompt ?? input
  return (typeof asked === 'string' ? asked : JSON.stringify(asked ?? item)).slice(0, promptMax)
}

/** The rows, those that got worse first. */
export function Rows({ evaluation }: { evaluation: Evaluation }) {
  const [filter, setFilter] = useState<Filter>('all')
  const [shown, setShown] = useState<EvaluationRow>()
  const running = evaluation.status === 'running' || evaluation.status === 'queued'
  const { query, rows, more } = usePages(
    ['evaluations', evaluation.id, 'rows'],
    (options) => tunery.evaluations.rows(evaluation.id, { limit: 50 }, options),
    { ...(running && { refresh_ms: 2 * refresh_ms }) },
  )
  const client = useQueryClient()
  const { done } = evaluation
  // The rows are asked again with each answer that the page hears of.
  useEffect(() => {
    if (done > 0) void client.invalidateQueries({ queryKey: ['evaluations', evaluation.id, 'rows'] })
  }, [client, done, evaluation.id])
  const found = (rows ?? []).filter(fits[filter])
  const compared = evaluation.baseline !== null
  return (
    <Card
      title="Rows"
      description={compared ? 'Regressions first' : 'Lowest scores first'}
      actions={
        <Segments
          label="Rows"
          value={filter}
          onChange={setFilter}
          choices={[
            { value: 'all', label: 'All' },
            ...(compared
              ? ([
                  { value: 'worse', label: 'Worse' },
                  { value: 'better', label: 'Better' },
                ] as const)
              : []),
            { value: 'failed', label: 'Failed' },
          ]}
        />
      }
      flush
    >
      <Loaded query={query}>
        {() => (
          <Table
            label="Rows"
            rows={found}
            rowId={({ row }) => String(row)}
            more={more}
            onOpen={setShown}
            rowTone={({ difference }) => (difference !== null && difference < 0 ? 'bad' : undefined)}
            maxHeight="70vh"
            empty={<EmptyState compact title={running ? 'No rows scored yet' : 'No matching rows'} />}
            columns={[
              { id: 'row', header: 'Row', align: 'right', cell: ({ row }) => row },
              { id: 'prompt', header: 'Prompt', grow: true, cell: ({ item }) => promptOf(item) },
              { id: 'answer', header: 'Answer', from: 'lg', cell: ({ model }) => <Short answer={model} /> },
              { id: 'model', header: 'Score', align: 'right', cell: ({ model }) => formatNumber(model?.score) },
              ...(compared
                ? [
                    {
                      id: 'other',
                      header: 'Baseline answer',
                      from: 'lg' as const,
                      cell: ({ baseline }: EvaluationRow) => <Short answer={baseline} />,
                    },
                    {
                      id: 'baseline',
                      header: 'Baseline score',
                      align: 'right' as const,
                      cell: ({ baseline }: EvaluationRow) => formatNumber(baseline?.score),
                    },
                  ]
                : []),
            ]}
          />
        )}
      </Loaded>
      {shown && <RowDialog row={shown} onClose={() => setShown(undefined)} />}
    </Card>
  )
}

/** What was answered. An answer of white space alone would be seen as none. */
function textOf({ output, error }: Answer): string {
  return output?.trim() ? output : (error?.message ?? (output === null ? 'No answer' : 'Empty answer'))
}

/** An answer in a cell of the table. */
const Short = ({ answer }: { answer: Answer | null }) => (
  <span className="block max-w-56 truncate">{(answer ? textOf(answer) : none).slice(0, promptMax)}</span>
)

function RowDialog({ row, onClose }: { row: EvaluationRow; onClose: () => void }) {
  const { item, model, baseline, difference } = row
  const { messages, reference } = item as { messages?: { role: string; content: unknown }[]; reference?: unknown }
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      width="lg"
      title={`Row ${row.row}`}
      description={
        difference === null
          ? undefined
          : difference === 0
            ? 'Same score'
            : `${difference > 0 ? 'Better' : 'Worse'} by ${formatNumber(Math.abs(difference))}`
      }
    >
      <div className="grid gap-4">
        {messages ? (
          <ol className="grid gap-2">
            {messages.map(({ role, content }, index) => (
              <li key={index} className="rounded-md bg-hover px-3 py-2">
                <p className="text-xs font-medium text-muted">{role}</p>
                <LongText text={typeof content === 'string' ? content : JSON.stringify(content)} />
              </li>
            ))}
          </ol>
        ) : (
          <pre className="overflow-x-auto rounded-md bg-hover p-3 text-sm">{JSON.stringify(item, null, 2)}</pre>
        )}
        <div className="grid gap-3 md:grid-cols-2">
          <AnswerView title="Model" answer={model} />
          {baseline && <AnswerView title="Baseline" answer={baseline} />}
        </div>
        {reference !== undefined && (
          <section aria-label="Expected answer">
            <h3 className="mb-1 text-sm font-medium text-muted">Expected answer</h3>
            <div className="rounded-md p-3 ring-1 ring-line">
              <LongText text={typeof reference === 'string' ? reference : JSON.stringify(reference)} />
            </div>
          </section>
        )}
      </div>
    </Dialog>
  )
}

function AnswerView({ title, answer }: { title: string; answer: Answer | null }) {
  return (
    <section aria-label={title} className="min-w-0 rounded-md p-3 ring-1 ring-line">
      <h3 className="mb-2 flex items-center justify-between gap-2 text-sm font-medium">
        {title}
        {answer && <Badge tone={answer.passed ? 'good' : 'bad'}>{formatNumber(answer.score)}</Badge>}
      </h3>
      {answer ? (
        <>
          <LongText text={textOf(answer)} />
          {answer.finish_reason === 'length' && <p className="mt-2 text-sm text-warn">Cut at max tokens.</p>}
          <dl className="mt-3 grid gap-1 text-sm">
            {Object.entries(answer.graders).map(([name, grade]) => (
              <div key={name} className="flex justify-between gap-2">
                <dt className="min-w-0 truncate text-muted">{name}</dt>
                <dd className={grade.passed ? 'text-good' : 'text-bad'}>
                  {grade.error ?? grade.label ?? formatNumber(grade.score)}
                </dd>
              </div>
            ))}
          </dl>
        </>
      ) : (
        <p className="text-sm text-muted">Not answered yet.</p>
      )}
    </section>
  )
}
