import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate, useParams } from '@tanstack/react-router'
import type { Evaluation } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatCount, formatDuration, formatNumber, formatPercent, plural } from '../../lib/format.ts'
import { useModelNames } from '../../lib/names.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { DatasetName, ModelName } from '../../parts/names.tsx'
import { Button, LinkButton } from '../../ui/button.tsx'
import { CodeBlock } from '../../ui/code.tsx'
import { Disclosure, Help } from '../../ui/disclosure.tsx'
import { Loaded, Notice, Progress, Status } from '../../ui/feedback.tsx'
import { Card, Facts, Page, Stat } from '../../ui/layout.tsx'
import { ConfirmDialog } from '../../ui/popups.tsx'
import { Table } from '../../ui/table.tsx'
import { toastError } from '../../ui/toast.tsx'
import { Code, Message, RelativeTime } from '../../ui/values.tsx'
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
      status={query.data && <Status status={query.data.status} />}
      back={{ to: '/evaluations', label: 'Evaluations' }}
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
    onError: toastError('Could not cancel the evaluation'),
  })
  if (!mayWrite) return null
  const models = [evaluation.baseline, evaluation.model].filter((each) => each !== null)
  return (
    <>
      {models.length > 0 && (
        <LinkButton to="/playground" search={{ models: models.join(',') }}>
          Open in playground
        </LinkButton>
      )}
      {isOver(evaluation) ? (
        <ConfirmDialog
          trigger={<Button>Delete</Button>}
          title="Delete this evaluation?"
          action="Delete evaluation"
          onConfirm={async () => {
            await tunery.evaluations.delete(evaluation.id)
            await navigate({ to: '/evaluations' })
            client.removeQueries({ queryKey: ['evaluations', evaluation.id] })
            await client.invalidateQueries({ queryKey: ['evaluations', 'list'] })
          }}
        >
          Its answers and scores are deleted.
        </ConfirmDialog>
      ) : (
        <Button busy={cancel.isPending} onClick={() => cancel.mutate()}>
          Cancel evaluation
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
        <Notice tone="bad" title="Evaluation failed">
          <Message text={error.message} />
        </Notice>
      )}
      {!isOver(evaluation) && (
        <Card title="In progress" description="Runs in the background, after live requests. Results so far are below.">
          <div className="grid gap-1.5">
            <Progress
              value={total > 0 ? done / total : null}
              label={`${formatCount(done)} of ${plural(total, 'answer')}`}
            />
            <p className="text-sm text-muted">
              {formatCount(done)} of {plural(total, 'answer')}
            </p>
          </div>
        </Card>
      )}
      {evaluation.trained_rows !== null && evaluation.trained_rows > 0 && (
        <Notice
          tone="warn"
          title={
            evaluation.trained_rows === rows
              ? 'The model was trained on these rows'
              : `The model was trained on ${formatCount(evaluation.trained_rows)} of these ${plural(rows, 'row')}`
          }
        >
          It has seen their answers, so this score says little about new questions. Evaluate on held-out rows or on
          another dataset.
        </Notice>
      )}
      {result && <Result evaluation={evaluation} result={result} />}
      <div className="grid items-start gap-4 2xl:grid-cols-[minmax(0,1fr)_20rem]">
        <Rows evaluation={evaluation} />
        <Settings evaluation={evaluation} />
      </div>
    </div>
  )
}

function Result({ evaluation, result }: { evaluation: Evaluation; result: NonNullable<Evaluation['result']> }) {
  const { model, baseline, difference } = result
  const sides = [model, ...(baseline ? [baseline] : [])]
  const nameOf = useModelNames()
  return (
    <Card
      title={
        <>
          Result{' '}
          <Help word="the interval">
            With few rows, a score is partly chance. The true score lies within the 95% interval in 95 of 100
            evaluations. If the interval of the difference includes 0, the difference may be chance.
          </Help>
        </>
      }
    >
      <div className="grid gap-5">
        {difference && <p className="text-lg font-medium">{sentence(difference)}</p>}
        {difference && (
          <dl className="grid grid-cols-3 gap-4 sm:max-w-md">
            <Stat
              label="Rows better"
              value={<span className={difference.better > 0 ? 'text-good' : ''}>{difference.better}</span>}
            />
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
              label: side.model ? nameOf(side.model) : index === 0 ? 'Answers in the dataset' : 'Baseline',
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
              { id: 'side', header: '', cell: (each) => each.side },
              {
                id: 'model',
                header: 'Model',
                grow: true,
                from: 'sm',
                cell: (each) => (each.model ? <ModelName id={each.model} /> : '–'),
              },
              { id: 'score', header: 'Score', align: 'right', cell: (each) => formatNumber(each.score?.mean) },
              { id: 'pass', header: 'Pass', align: 'right', cell: (each) => formatPercent(each.pass_rate, 1) },
              { id: 'errors', header: 'Errors', align: 'right', from: 'sm', cell: (each) => each.errors },
              {
                id: 'latency',
                header: 'Latency p50 / p95',
                align: 'right',
                from: 'md',
                cell: ({ latency_ms }) =>
                  latency_ms
                    ? `${formatDuration(latency_ms.p50 / 1000)} / ${formatDuration(latency_ms.p95 / 1000)}`
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
        <GraderTable sides={sides} />
      </div>
    </Card>
  )
}

type EvaluationSide = NonNullable<Evaluation['result']>['model']

/** Errors and latency of the graders; nothing of evaluations before these were kept. */
function GraderTable({ sides }: { sides: EvaluationSide[] }) {
  const rows = sides.flatMap(({ grader_figures = {} }, index) =>
    Object.entries(grader_figures).map(([name, figures]) => ({
      ...figures,
      name: sides.length > 1 ? `${name}, ${index === 0 ? 'model' : 'baseline'}` : name,
    })),
  )
  const judges = sides.flatMap(({ judges }) => (judges && judges.requests > 0 ? [judges] : []))
  const tokens = judges.reduce(
    (sum, { prompt_tokens, completion_tokens }) => sum + prompt_tokens + completion_tokens,
    0,
  )
  if (rows.length === 0) return null
  return (
    <div className="grid gap-2">
      <div className="-mx-4">
        <Table
          label="Graders"
          rows={rows}
          rowId={({ name }) => name}
          columns={[
            { id: 'name', header: 'Grader', grow: true, cell: ({ name }) => name },
            { id: 'score', header: 'Score', align: 'right', cell: ({ score }) => formatNumber(score) },
            { id: 'errors', header: 'Errors', align: 'right', cell: ({ errors }) => errors },
            {
              id: 'latency',
              header: 'Latency mean / p95',
              align: 'right',
              from: 'sm',
              cell: ({ latency_ms }) =>
                latency_ms
                  ? `${formatDuration(latency_ms.mean / 1000)} / ${formatDuration(latency_ms.p95 / 1000)}`
                  : '–',
            },
            { id: 'error', header: 'Last error', from: 'md', cell: ({ last_error }) => last_error ?? '' },
          ]}
        />
      </div>
      {judges.length > 0 && <p className="text-sm text-muted">Judges used {formatNumber(tokens)} tokens.</p>}
    </div>
  )
}

/** What the difference means, in words. */
function sentence({ mean, low, high }: NonNullable<NonNullable<Evaluation['result']>['difference']>): string {
  const by = `by ${formatNumber(Math.abs(mean))}`
  if (low === null || high === null) return 'Too few rows to tell which is better.'
  const between = `(95% interval ${formatNumber(low)} to ${formatNumber(high)})`
  if (low > 0) return `The model is better than the baseline ${by} ${between}.`
  if (high < 0) return `The model is worse than the baseline ${by} ${between}.`
  if (mean === 0) return `The model and the baseline score the same ${between}.`
  return `The model scores ${mean > 0 ? 'higher' : 'lower'} ${by}, but that may be chance ${between}.`
}

function Settings({ evaluation }: { evaluation: Evaluation }) {
  const {
    id,
    model,
    baseline,
    dataset,
    rows,
    held_out_by,
    sampling,
    graders,
    template,
    created_at,
    started_at,
    finished_at,
  } = evaluation
  const seconds = started_at && finished_at ? (Date.parse(finished_at) - Date.parse(started_at)) / 1000 : null
  return (
    <Card title="Settings">
      <div className="grid gap-4">
        <Facts
          facts={[
            ['ID', <Code key="id">{id}</Code>],
            ['Model', model ? <ModelName key="model" id={model} /> : 'None'],
            baseline !== null && ['Baseline', <ModelName key="baseline" id={baseline} />],
            ['Dataset', <DatasetName key="dataset" id={dataset} />],
            ['Rows', `${formatCount(rows)}${held_out_by ? ', held out' : ''}`],
            ['Temperature', formatNumber(sampling.temperature)],
            ['Max tokens', formatCount(sampling.max_tokens)],
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
        <p className="text-sm text-muted">You can require this evaluation when you switch the model of a deployment.</p>
      </div>
    </Card>
  )
}
