import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate, useParams } from '@tanstack/react-router'
import type { Evaluation } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatCount, formatDuration, formatNumber, formatPercent, plural } from '../../lib/format.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { Button, LinkButton, TextLink } from '../../ui/button.tsx'
import { CodeBlock } from '../../ui/code.tsx'
import { Disclosure, Help } from '../../ui/disclosure.tsx'
import { Loaded, Notice, Progress, Status } from '../../ui/feedback.tsx'
import { Card, Facts, Page, Stat } from '../../ui/layout.tsx'
import { ConfirmDialog } from '../../ui/popups.tsx'
import { Table } from '../../ui/table.tsx'
import { toastError } from '../../ui/toast.tsx'
import { Code, RelativeTime } from '../../ui/values.tsx'
import { Interval } from './interval.tsx'
import { Rows } from './rows.tsx'

const isOver = ({ status }: Evaluation) => ['completed', 'failed', 'cancelled'].includes(status)

export default function EvaluationPage() {
  const { evaluationId } = useParams({ from: '/shell/evaluations/$evaluationId' })
  const query = useQuery({
    queryKey: ['evaluations', evaluationId],
    queryFn: ({ signal }) => tunery.evaluations.get(evaluationId, { signal }),
    refetchInterval: ({ state }) => (state.data && isOver(state.data) ? false : refresh_ms),
  })
  return (
    <Page
      title={query.data?.name ?? 'Evaluation'}
      back={{ to: '/evaluations', label: 'Evaluations' }}
      description={query.data && <Status status={query.data.status} />}
      actions={query.data && <Actions evaluation={query.data} />}
    >
      <Loaded query={query}>{(evaluation) => <Found evaluation={evaluation} />}</Loaded>
    </Page>
  )
}

function Actions({ evaluation }: { evaluation: Evaluation }) {
  const mayWrite = useMay('tuning:write')
  const navigate = useNavigate()
  const client = useQueryClient()
  const cancel = useMutation({
    mutationFn: () => tunery.evaluations.cancel(evaluation.id),
    onSuccess: (changed) => client.setQueryData(['evaluations', evaluation.id], changed),
    onError: toastError('The evaluation was not cancelled'),
  })
  if (!mayWrite) return null
  const models = [evaluation.baseline, evaluation.model].filter((each) => each !== null)
  return (
    <>
      {models.length > 0 && (
        <LinkButton to="/playground" search={{ models: models.join(',') }}>
          Open in the playground
        </LinkButton>
      )}
      {isOver(evaluation) ? (
        <ConfirmDialog
          trigger={<Button>Delete</Button>}
          title="Delete the evaluation?"
          action="Delete evaluation"
          onConfirm={async () => {
            await tunery.evaluations.delete(evaluation.id)
            await client.invalidateQueries({ queryKey: ['evaluations', 'list'] })
            await navigate({ to: '/evaluations' })
          }}
        >
          Its answers and scores are deleted with it.
        </ConfirmDialog>
      ) : (
        <Button busy={cancel.isPending} onClick={() => cancel.mutate()}>
          Cancel
        </Button>
      )}
    </>
  )
}

function Found({ evaluation }: { evaluation: Evaluation }) {
  const { result, error, rows, done, baseline } = evaluation
  const total = rows * (baseline ? 2 : 1)
  return (
    <div className="grid gap-4">
      {error && (
        <Notice tone="bad" title="The evaluation failed">
          {error.message}
        </Notice>
      )}
      {!isOver(evaluation) && (
        <Card title="Under way" description="Answers are made after all live requests. What is scored so far is below.">
          <Progress
            value={total > 0 ? done / total : null}
            label={`${formatCount(done)} of ${plural(total, 'answer')}`}
          />
        </Card>
      )}
      {result && <Result evaluation={evaluation} result={result} />}
      <div className="grid items-start gap-4 lg:grid-cols-[minmax(0,1fr)_20rem]">
        <Rows evaluation={evaluation} />
        <Settings evaluation={evaluation} />
      </div>
    </div>
  )
}

function Result({ evaluation, result }: { evaluation: Evaluation; result: NonNullable<Evaluation['result']> }) {
  const { model, baseline, difference } = result
  const sides = [model, ...(baseline ? [baseline] : [])]
  return (
    <Card
      title={
        <>
          Result{' '}
          <Help word="the interval">
            With few rows a score is partly chance. In 95 of 100 such evaluations the true score lies within the
            interval. Where that of the difference includes 0, neither model is better by more than chance.
          </Help>
        </>
      }
    >
      <div className="grid gap-5">
        {difference && <p className="text-lg font-medium">{sentence(difference)}</p>}
        {difference && (
          <dl className="grid grid-cols-3 gap-4 sm:max-w-md">
            <Stat label="Rows better" value={<span className="text-good">{difference.better}</span>} />
            <Stat
              label="Rows worse"
              value={<span className={difference.worse > 0 ? 'text-bad' : ''}>{difference.worse}</span>}
            />
            <Stat label="Rows equal" value={difference.equal} />
          </dl>
        )}
        <Interval
          entries={[
            ...sides.map((side, index) => ({
              label: side.model ?? (index === 0 ? 'The answers of the rows' : 'Baseline'),
              interval: side.score,
            })),
          ]}
        />
        <div className="-mx-4">
          <Table
            label="Scores"
            rows={sides.map((side, index) => ({ ...side, side: index === 0 ? 'Model' : 'Baseline' }))}
            rowId={({ side }) => side}
            columns={[
              { id: 'side', header: 'Side', cell: (each) => each.side },
              { id: 'model', header: 'Model', grow: true, from: 'sm', cell: (each) => each.model ?? '–' },
              { id: 'score', header: 'Score', align: 'right', cell: (each) => formatNumber(each.score?.mean) },
              { id: 'pass', header: 'Pass', align: 'right', cell: (each) => formatPercent(each.pass_rate, 1) },
              { id: 'errors', header: 'Errors', align: 'right', from: 'sm', cell: (each) => each.errors },
              {
                id: 'latency',
                header: 'Time p50, p95',
                align: 'right',
                from: 'md',
                cell: ({ latency_ms }) =>
                  latency_ms
                    ? `${formatDuration(latency_ms.p50 / 1000)}, ${formatDuration(latency_ms.p95 / 1000)}`
                    : '–',
              },
              ...evaluation.graders.map((grader) => {
                const name = String(grader.name)
                return {
                  id: `grader ${name}`,
                  header: name,
                  align: 'right' as const,
                  from: 'md' as const,
                  cell: (each: (typeof sides)[number]) => formatNumber(each.graders[name]),
                }
              }),
            ]}
          />
        </div>
      </div>
    </Card>
  )
}

/** What the difference means, in words. */
function sentence({ mean, low, high }: NonNullable<NonNullable<Evaluation['result']>['difference']>): string {
  const by = `by ${formatNumber(Math.abs(mean))}`
  if (low === null || high === null) return 'Too few rows to say which is better.'
  const between = `(between ${formatNumber(low)} and ${formatNumber(high)})`
  if (low > 0) return `The model is better than the baseline ${by} ${between}.`
  if (high < 0) return `The model is worse than the baseline ${by} ${between}.`
  if (mean === 0) return `The model and the baseline score the same ${between}.`
  return `The model scores ${mean > 0 ? 'higher' : 'lower'} ${by}, which may be chance ${between}.`
}

function Settings({ evaluation }: { evaluation: Evaluation }) {
  const { id, model, baseline, dataset, rows, sampling, graders, template, created_at, started_at, finished_at } =
    evaluation
  const seconds = started_at && finished_at ? (Date.parse(finished_at) - Date.parse(started_at)) / 1000 : null
  return (
    <Card title="What was asked">
      <div className="grid gap-4">
        <Facts
          facts={[
            ['Id', <Code key="id">{id}</Code>],
            ['Model', model ? <Code key="model">{model}</Code> : 'none'],
            baseline !== null && ['Baseline', <Code key="baseline">{baseline}</Code>],
            [
              'Dataset',
              dataset.startsWith('ds_') ? (
                <TextLink key="dataset" to="/datasets/$datasetId" params={{ datasetId: dataset }}>
                  {dataset}
                </TextLink>
              ) : (
                <Code key="dataset">{dataset}</Code>
              ),
            ],
            ['Rows', formatCount(rows)],
            ['Temperature', formatNumber(sampling.temperature)],
            ['Longest answer', plural(sampling.max_tokens ?? 0, 'token')],
            ['Created', <RelativeTime key="created" time={created_at} />],
            seconds !== null && ['Took', formatDuration(seconds)],
          ]}
        />
        <Disclosure summary="Graders" quiet>
          <CodeBlock title="Graders" code={JSON.stringify(graders, null, 2)} wrap />
        </Disclosure>
        {template && (
          <Disclosure summary="Template" quiet>
            <CodeBlock title="Template" code={JSON.stringify(template, null, 2)} wrap />
          </Disclosure>
        )}
        <p className="text-sm text-muted">
          As a gate: a switch of a deployment that names this evaluation goes through only if the new model passes it.
        </p>
      </div>
    </Card>
  )
}
