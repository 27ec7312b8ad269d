import { useQuery } from '@tanstack/react-query'
import { MessageCircle, Rocket } from 'lucide-react'
import { useState } from 'react'
import type { Evaluation, Job } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatNumber, formatPercent } from '../../lib/format.ts'
import { hasValidation, isReinforcement } from '../../lib/jobs.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { DeployDialog } from '../../parts/deploy.tsx'
import { Button, LinkButton, TextLink } from '../../ui/button.tsx'
import { Help } from '../../ui/disclosure.tsx'
import { Badge, Skeleton } from '../../ui/feedback.tsx'
import { Card, Facts } from '../../ui/layout.tsx'

/** What the job made, how good it is, and what to do with it. */
export function Result({ job }: { job: Job }) {
  const mayDeploy = useMay('deployments:write')
  const mayChat = useMay('inference')
  const mayExport = useMay('exports:write')
  const [deploying, setDeploying] = useState(false)
  const { model, metrics } = job
  // Its model may have been deleted since.
  const found = useQuery({
    queryKey: ['models', model],
    queryFn: ({ signal }) => tunery.models.get(model!, { signal }),
    enabled: model !== null,
  })
  if (model === null) return null
  const { step, steps_trained } = metrics
  const earlier = step !== undefined && steps_trained !== undefined && steps_trained > step
  return (
    <Card
      title="Trained model"
      actions={
        !found.isError && (
          <>
            {mayExport && (
              <LinkButton to="/exports" search={{ model }}>
                Export
              </LinkButton>
            )}
            {mayDeploy && (
              <Button icon={<Rocket aria-hidden />} onClick={() => setDeploying(true)}>
                Deploy
              </Button>
            )}
            {mayChat && (
              <LinkButton
                to="/playground"
                search={{ models: `${job.model_id},${model}`, ...(hasValidation(job) && { rows: job.id }) }}
                variant="primary"
                icon={<MessageCircle aria-hidden />}
              >
                Compare with base
              </LinkButton>
            )}
          </>
        )
      }
    >
      <Facts
        columns={2}
        facts={[
          [
            'Model',
            found.isError ? (
              <span key="model" className="text-muted">
                {found.error.message}
              </span>
            ) : (
              <TextLink key="model" to="/models/$modelId" params={{ modelId: model }}>
                {found.data?.name ?? model}
              </TextLink>
            ),
          ],
          ['Deployments', <ServedAs key="served" model={model} />],
          [
            'Checkpoint',
            earlier ? (
              <span key="state">
                Step {step} (best of {steps_trained}){' '}
                <Help word="the best checkpoint">
                  {isReinforcement(job)
                    ? 'It had the highest reward on held-out prompts. Later steps did worse on prompts they did not ' +
                      'train on.'
                    : 'It had the lowest validation loss. Later steps made the model worse on rows it had not seen.'}
                </Help>
              </span>
            ) : (
              `Step ${step ?? '–'} (last)`
            ),
          ],
          metrics.validation_exact !== undefined && [
            'Held-out rows',
            `${formatPercent(metrics.validation_exact)} exact` +
              (metrics.validation_accuracy === undefined
                ? ''
                : `, ${formatPercent(metrics.validation_accuracy)} of tokens right`),
          ],
          metrics.validation_reward !== undefined && [
            'Held-out reward',
            `${formatNumber(metrics.validation_reward)} on prompts it did not train on`,
          ],
          metrics.validation_reward_accuracy !== undefined && [
            'Preferences',
            `${formatPercent(metrics.validation_reward_accuracy)} of held-out preferences right`,
          ],
          ['Evaluation', <Scores key="evaluation" job={job} />],
        ]}
      />
      {deploying && <DeployDialog model={model} suggestion={job.name} onClose={() => setDeploying(false)} />}
    </Card>
  )
}

function ServedAs({ model }: { model: string }) {
  const { data, isPending } = useQuery({
    queryKey: ['deployments', 'list', { limit: 100 }],
    queryFn: ({ signal }) => tunery.deployments.list({ limit: 100 }, { signal }),
  })
  if (isPending) return <Skeleton className="h-4 w-24" />
  const names = (data?.items ?? []).filter((each) => each.model === model)
  if (names.length === 0) return <span className="text-muted">Not deployed yet</span>
  return (
    <span className="flex flex-wrap gap-x-3">
      {names.map(({ name }) => (
        <TextLink key={name} to="/deployments/$name" params={{ name }}>
          {name}
        </TextLink>
      ))}
    </span>
  )
}

const pending = (evaluation: Evaluation | undefined) =>
  evaluation?.status === 'queued' || evaluation?.status === 'running'

/** The evaluation that the job named, beside the model that it started from; else the latest of the result. */
function Scores({ job: { evaluation, result_evaluation, model, model_id } }: { job: Job }) {
  const others = useQuery({
    queryKey: ['evaluations', 'list', { limit: 100 }],
    queryFn: ({ signal }) => tunery.evaluations.list({ limit: 100 }, { signal }),
    enabled: evaluation === null,
  })
  const id = result_evaluation ?? others.data?.items.find((each) => each.model === model)?.id ?? null
  const { data, isError, error } = useQuery({
    queryKey: ['evaluations', id],
    queryFn: ({ signal }) => tunery.evaluations.get(id!, { signal }),
    enabled: id !== null,
    refetchInterval: ({ state }) => (pending(state.data) ? refresh_ms : false),
  })
  if (others.isLoading) return <Skeleton className="h-4 w-40" />
  if (id === null)
    return evaluation === null ? (
      <span className="text-muted">
        Not evaluated yet.{' '}
        <TextLink to="/evaluations" search={{ model: model ?? undefined, baseline: model_id }}>
          Evaluate
        </TextLink>
      </span>
    ) : (
      <span className="text-muted">Starting…</span>
    )
  if (isError) return <span className="text-muted">{error.message}</span>
  if (!data) return <Skeleton className="h-4 w-40" />
  const result = data.result
  const score = result?.model?.score?.mean
  const base = result?.baseline?.score?.mean
  const difference = result?.difference
  return (
    <span className="flex flex-wrap items-center gap-x-2 gap-y-1">
      <TextLink to="/evaluations/$evaluationId" params={{ evaluationId: id }}>
        {score === undefined ? `${data.name}: ${data.status}` : `score ${formatNumber(score)}`}
      </TextLink>
      {base !== undefined && <span className="text-muted">base {formatNumber(base)}</span>}
      {difference && difference.low !== null && difference.high !== null && (
        <Badge tone={difference.low > 0 ? 'good' : difference.high < 0 ? 'bad' : 'neutral'}>
          {difference.low > 0 ? 'better' : difference.high < 0 ? 'worse' : 'no clear difference'}
        </Badge>
      )}
    </span>
  )
}
