import { useNavigate, useSearch } from '@tanstack/react-router'
import { FlaskConical, Plus } from 'lucide-react'
import { useState } from 'react'
import type { Evaluation } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatNumber } from '../../lib/format.ts'
import { usePages } from '../../lib/pages.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { Button } from '../../ui/button.tsx'
import { EmptyState, Loaded, Status } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'
import { type Column, Table } from '../../ui/table.tsx'
import { RelativeTime } from '../../ui/values.tsx'
import { NewEvaluation } from './new.tsx'

const signed = (value: number) => `${value > 0 ? '+' : ''}${formatNumber(value)}`

const columns: readonly Column<Evaluation>[] = [
  { id: 'name', header: 'Name', grow: true, cell: (evaluation) => evaluation.name },
  { id: 'status', header: 'Status', cell: (evaluation) => <Status status={evaluation.status} /> },
  {
    id: 'score',
    header: 'Score',
    align: 'right',
    cell: (evaluation) => formatNumber(evaluation.result?.model.score?.mean),
  },
  {
    id: 'difference',
    header: 'vs. baseline',
    align: 'right',
    from: 'sm',
    cell: ({ result }) => (result?.difference ? <Verdict difference={result.difference} /> : '–'),
  },
  { id: 'rows', header: 'Rows', align: 'right', from: 'md', cell: (evaluation) => evaluation.rows },
  {
    id: 'created',
    header: 'Created',
    align: 'right',
    from: 'md',
    cell: (evaluation) => <RelativeTime time={evaluation.created_at} />,
  },
]

function Verdict({ difference }: { difference: NonNullable<NonNullable<Evaluation['result']>['difference']> }) {
  const { mean, low, high } = difference
  const sure = low !== null && high !== null && (low > 0 || high < 0)
  return <span className={sure ? (mean > 0 ? 'text-good' : 'text-bad') : ''}>{signed(mean)}</span>
}

export default function EvaluationsPage() {
  const mayWrite = useMay('tuning:write')
  const { model, baseline } = useSearch({ from: '/shell/evaluations' })
  const navigate = useNavigate()
  const [creating, setCreating] = useState(model !== undefined)
  const { query, rows, more } = usePages(
    ['evaluations', 'list'],
    (options) => tunery.evaluations.list({ limit: 50 }, options),
    { refresh_ms: 2 * refresh_ms },
  )
  const create = mayWrite && (
    <Button variant="primary" icon={<Plus aria-hidden />} onClick={() => setCreating(true)}>
      New evaluation
    </Button>
  )
  return (
    <Page
      title="Evaluations"
      description="Score models on the rows of a dataset, and compare them with a baseline."
      actions={create}
    >
      <Card flush>
        <Loaded query={query}>
          {() => (
            <Table
              label="Evaluations"
              columns={columns}
              rows={rows ?? []}
              rowId={({ id }) => id}
              link={({ id }) => ({ to: '/evaluations/$evaluationId', params: { evaluationId: id } })}
              more={more}
              empty={
                <EmptyState icon={<FlaskConical aria-hidden />} title="No evaluations yet" action={create}>
                  Find out whether your model is really better than its base.
                </EmptyState>
              }
            />
          )}
        </Loaded>
      </Card>
      {creating && mayWrite && (
        <NewEvaluation
          of={model}
          beside={baseline}
          onClose={() => {
            setCreating(false)
            void navigate({ to: '/evaluations', replace: true })
          }}
        />
      )}
    </Page>
  )
}
