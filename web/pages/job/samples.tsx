import { MessagesSquare } from 'lucide-react'
import { useState } from 'react'
import type { Job } from '../../../sdk/index.ts'
import { isOver } from '../../lib/events.ts'
import { LinkButton } from '../../ui/button.tsx'
import { Slider } from '../../ui/choices.tsx'
import { Badge, EmptyState } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { LongText } from '../../ui/long-text.tsx'
import type { Sample } from './run.ts'

/** What the model answers to the sample prompts, from evaluation to evaluation, beside the base. */
export function Samples({ job, samples }: { job: Job; samples: readonly Sample[] }) {
  // Undefined: the latest, also when a later one comes.
  const [chosen, setChosen] = useState<number>()
  const steps = [...new Set(samples.flatMap(({ answers }) => answers.map(({ step }) => step)))].sort((a, b) => a - b)
  if (steps.length === 0) return <NoSamples job={job} />
  const found = chosen === undefined ? -1 : steps.indexOf(chosen)
  const index = found === -1 ? steps.length - 1 : found
  const step = steps[index]!
  return (
    <Card title="Sample answers" description="How answers change during training, next to those of the base.">
      <div className="grid gap-4 pt-1">
        {steps.length > 1 && (
          <div className="max-w-xl">
            <Slider
              label="At step"
              value={index}
              onChange={(next) => setChosen(next === steps.length - 1 ? undefined : steps[next])}
              min={0}
              max={steps.length - 1}
              step={1}
              format={(at) => `${steps[at]}${at === steps.length - 1 ? ' (latest)' : ''}`}
            />
          </div>
        )}
        <ol className="grid gap-4">
          {samples.map(({ prompt, base, answers }) => (
            <li key={JSON.stringify(prompt)} className="grid gap-2.5 rounded-lg p-3 ring-1 ring-line">
              {prompt.map(({ role, content }, place) => (
                <div key={place} className="flex items-baseline gap-2">
                  <Badge>{role}</Badge>
                  <div className="min-w-0">
                    <LongText text={content} />
                  </div>
                </div>
              ))}
              <div className="grid gap-2.5 md:grid-cols-2">
                <Answer title="Before training" text={base} />
                <Answer
                  title={`At step ${step}`}
                  text={answers.findLast((answer) => answer.step <= step)?.answer}
                  former={base}
                  tuned
                />
              </div>
            </li>
          ))}
        </ol>
      </div>
    </Card>
  )
}

function Answer({
  title,
  text,
  former,
  tuned,
}: {
  title: string
  text?: string | undefined
  former?: string
  tuned?: boolean
}) {
  return (
    <div className={`min-w-0 rounded-md p-2.5 ${tuned ? 'bg-accent-soft' : 'bg-sunken'}`}>
      <h3 className="mb-1 flex items-center gap-2 text-sm font-medium text-muted">
        {title}
        {tuned && text !== undefined && text === former && <span className="font-normal">unchanged</span>}
      </h3>
      {text === undefined ? (
        <p className="text-muted">No answer yet.</p>
      ) : text.trim() === '' ? (
        <p className="text-muted">Empty answer</p>
      ) : (
        <div
          // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
          tabIndex={0}
          className="focus-inset max-h-60 overflow-auto"
        >
          <LongText text={text} />
        </div>
      )}
    </div>
  )
}

function NoSamples({ job }: { job: Job }) {
  const prompts = job.resolved_config.evaluation_config.sample_prompts.value.length
  return (
    <Card>
      <EmptyState
        icon={<MessagesSquare aria-hidden />}
        title={prompts === 0 ? 'No sample prompts' : isOver(job) ? 'No samples' : 'No samples yet'}
        action={
          prompts === 0 && (
            <LinkButton to="/jobs/new" search={{ clone: job.id }}>
              Clone with sample prompts
            </LinkButton>
          )
        }
      >
        {prompts === 0
          ? 'Add sample prompts to a job to see how its answers change during training.'
          : isOver(job)
            ? 'The job ended before its first evaluation.'
            : 'Samples appear with the first evaluation.'}
      </EmptyState>
    </Card>
  )
}
