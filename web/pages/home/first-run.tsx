import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { Check, Database, MessagesSquare, Rocket, SlidersHorizontal } from 'lucide-react'
import type { ReactNode } from 'react'
import example from '../../../examples/ticket-triage.jsonl?url'
import type { Deployment, Job } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { classes } from '../../lib/classes.ts'
import { hasCompared } from '../../lib/compared.ts'
import { isOver } from '../../lib/events.ts'
import { useMay, useSession } from '../../lib/session.ts'
import { Button, LinkButton } from '../../ui/button.tsx'
import { FormError } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'

/** The way from examples to a model that answers; gone once a model is deployed. */
export function FirstRun({ jobs, deployments }: { jobs?: Job[] | undefined; deployments?: Deployment[] | undefined }) {
  const mayUpload = useMay('datasets:write')
  const datasets = useQuery({
    queryKey: ['datasets', 'list', { limit: 1 }],
    queryFn: ({ signal }) => tunery.datasets.list({ limit: 1 }, { signal }),
  })
  const account = useSession().profile.account.id
  const evaluations = useQuery({
    queryKey: ['evaluations', 'list', { limit: 1 }],
    queryFn: ({ signal }) => tunery.evaluations.list({ limit: 1 }, { signal }),
    enabled: useMay('tuning:read'),
  })
  if (!jobs || !deployments || !datasets.data || !mayUpload || deployments.length > 0) return null
  const dataset = datasets.data.items[0]
  const compared = hasCompared(account) || (evaluations.data?.items.length ?? 0) > 0
  const running = jobs.find((job) => !isOver(job))
  const completed = jobs.find(({ model }) => model)
  const steps: Step[] = [
    {
      icon: <Database aria-hidden />,
      title: 'Upload examples',
      text: 'Prompts with the answers you want. The sample dataset triages support tickets.',
      done: Boolean(dataset),
      action: (
        <>
          <ExampleButton />
          <LinkButton to="/datasets">Upload a file</LinkButton>
        </>
      ),
    },
    {
      icon: <SlidersHorizontal aria-hidden />,
      title: 'Train',
      text: running
        ? 'Your job is running. Follow its progress below.'
        : 'A small model takes a few minutes on two cores.',
      done: Boolean(completed),
      action: running ? (
        <LinkButton to="/jobs/$jobId" params={{ jobId: running.id }} variant="primary">
          View job
        </LinkButton>
      ) : (
        <LinkButton to="/jobs/new" search={{ dataset: dataset?.id }} variant="primary">
          New job
        </LinkButton>
      ),
    },
    {
      icon: <MessagesSquare aria-hidden />,
      title: 'Compare',
      text: 'Ask the base and your model the same question, side by side.',
      done: compared,
      action: completed && (
        <LinkButton to="/playground" search={{ models: `${completed.model_id},${completed.model}` }} variant="primary">
          Compare
        </LinkButton>
      ),
    },
    {
      icon: <Rocket aria-hidden />,
      title: 'Deploy',
      text: 'Give your model a name and call it from any OpenAI client.',
      done: false,
      action: completed && (
        <LinkButton to="/models/$modelId" params={{ modelId: completed.model! }}>
          Deploy
        </LinkButton>
      ),
    },
  ]
  const next = steps.findIndex(({ done }) => !done)
  return (
    <Card title="Get started" description="Train and deploy your first model in four steps.">
      <ol className="grid gap-3 sm:grid-cols-2 xl:grid-cols-4">
        {steps.map((step, index) => (
          <StepCard
            key={step.title}
            step={step}
            number={index + 1}
            isNext={index === next}
            open={index <= next || (index === 3 && next === 2)}
          />
        ))}
      </ol>
    </Card>
  )
}

interface Step {
  icon: ReactNode
  title: string
  text: string
  done: boolean
  action: ReactNode
}

function StepCard({ step, number, isNext, open }: { step: Step; number: number; isNext: boolean; open: boolean }) {
  return (
    <li
      aria-current={isNext ? 'step' : undefined}
      className={classes(
        'flex flex-col rounded-lg p-3.5 ring-1',
        isNext ? 'bg-accent-soft/50 ring-accent-ink/50' : 'ring-line',
      )}
    >
      <div className="flex items-center gap-2">
        <span
          className={classes(
            'grid size-7 place-items-center rounded-full [&_svg]:size-4',
            step.done ? 'bg-good-soft text-good' : isNext ? 'bg-accent text-on-accent' : 'bg-hover text-muted',
          )}
        >
          {step.done ? <Check aria-hidden /> : step.icon}
        </span>
        <h3 className="font-semibold">
          {number}. {step.title}
          {step.done && <span className="sr-only"> (done)</span>}
        </h3>
      </div>
      <p className="mt-2 mb-3 text-sm text-muted">{step.text}</p>
      {open && !step.done && step.action && <div className="mt-auto flex flex-wrap gap-2">{step.action}</div>}
    </li>
  )
}

/** Uploads the bundled example and continues to a job on it. */
function ExampleButton() {
  const client = useQueryClient()
  const navigate = useNavigate()
  const upload = useMutation({
    mutationFn: async () => {
      const response = await fetch(example)
      if (!response.ok) throw new Error('The sample data is not part of this build. Run `npm run setup` and try again.')
      return tunery.datasets.upload(new File([await response.blob()], 'ticket-triage.jsonl'), { name: 'ticket-triage' })
    },
    onSuccess: async (dataset) => {
      await client.invalidateQueries({ queryKey: ['datasets'] })
      await navigate({ to: '/jobs/new', search: { dataset: dataset.id } })
    },
  })
  return (
    <>
      <Button variant="primary" busy={upload.isPending} onClick={() => upload.mutate()}>
        Use sample data
      </Button>
      <FormError error={upload.error} />
    </>
  )
}
