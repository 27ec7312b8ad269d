import { Save } from 'lucide-react'
import { useState } from 'react'
import type { Job, JobCheckpoint } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { isOver } from '../../lib/events.ts'
import { formatCount, formatNumber, plural } from '../../lib/format.ts'
import { isReinforcement } from '../../lib/jobs.ts'
import { usePages } from '../../lib/pages.ts'
import { useMay } from '../../lib/session.ts'
import { DeployDialog } from '../../parts/deploy.tsx'
import { ModelName } from '../../parts/names.tsx'
import { Button, LinkButton } from '../../ui/button.tsx'
import { Help } from '../../ui/disclosure.tsx'
import { Badge, EmptyState, Loaded } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { actionsColumn, type Column, Table } from '../../ui/table.tsx'
import { RelativeTime } from '../../ui/values.tsx'
import type { Point } from './run.ts'

/**
 * `written`: how many the stream has told of; each new one asks the list again. `rewards`: on held-out prompts, by
 * step.
 */
export function Checkpoints({ job, written, rewards }: { job: Job; written: number; rewards: readonly Point[] }) {
  const mayDeploy = useMay('deployments:write')
  const mayChat = useMay('inference')
  const [deploying, setDeploying] = useState<string>()
  const { query, rows, more } = usePages(['jobs', job.id, 'checkpoints', written, job.status], (options) =>
    tunery.jobs.checkpoints(job.id, { limit: 50 }, options),
  )
  const keep = job.resolved_config.evaluation_config.keep_checkpoints.value
  const columns: Column<JobCheckpoint>[] = [
    {
      id: 'step',
      header: 'Step',
      value: ({ step }) => step,
      cell: ({ step, result }) => (
        <span className="flex items-center gap-2">
          {formatCount(step)} {result && <Badge tone="good">result</Badge>}
        </span>
      ),
    },
    isReinforcement(job)
      ? {
          id: 'reward',
          header: 'Held-out reward',
          align: 'right',
          cell: ({ step }) => formatNumber(rewards.find((point) => point.step === step)?.value),
        }
      : {
          id: 'loss',
          header: 'Validation loss',
          align: 'right',
          value: ({ validation_loss }) => validation_loss,
          cell: ({ validation_loss }) => formatNumber(validation_loss, 5),
        },
    {
      id: 'model',
      header: 'Model',
      from: 'sm',
      grow: true,
      cell: ({ model }) =>
        model ? (
          <ModelName id={model} />
        ) : (
          <span className="text-muted">{isOver(job) ? 'Not kept' : 'For resuming'}</span>
        ),
    },
    {
      id: 'created',
      header: 'Saved',
      align: 'right',
      from: 'md',
      cell: ({ created_at }) => <RelativeTime time={created_at} />,
    },
    {
      ...actionsColumn,
      cell: ({ model, step }) =>
        model && (
          <span className="inline-flex gap-1.5">
            {mayChat && (
              <LinkButton
                size="sm"
                to="/playground"
                search={{ models: `${job.model_id},${model}` }}
                aria-label={`Chat with the checkpoint of step ${step}`}
              >
                Chat
              </LinkButton>
            )}
            {mayDeploy && (
              <Button
                size="sm"
                onClick={() => setDeploying(model)}
                aria-label={`Deploy the checkpoint of step ${step}`}
              >
                Deploy
              </Button>
            )}
          </span>
        ),
    },
  ]
  return (
    <Card
      title={
        <>
          Checkpoints{' '}
          <Help word="a checkpoint">
            The state of a job at a step. An interrupted job resumes from the last one. Kept checkpoints become models
            of their own, useful when an earlier one answers better than the last.
          </Help>
        </>
      }
      description={
        keep > 0
          ? `The ${plural(keep, 'newest evaluated checkpoint')} become models when the job completes.`
          : undefined
      }
      flush
    >
      <Loaded query={query}>
        {() => (
          <Table
            label="Checkpoints"
            columns={columns}
            rows={rows ?? []}
            rowId={({ step }) => String(step)}
            more={more}
            empty={
              <EmptyState icon={<Save aria-hidden />} title="No checkpoints yet">
                {isOver(job)
                  ? 'The job ended before its first checkpoint.'
                  : 'Checkpoints are saved every few minutes, when the job pauses, and at its end.'}
              </EmptyState>
            }
          />
        )}
      </Loaded>
      {deploying && <DeployDialog model={deploying} suggestion={job.name} onClose={() => setDeploying(undefined)} />}
    </Card>
  )
}
