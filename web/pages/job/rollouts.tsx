// What a job that learns from graders answered, step by step, and what each grader gave.
import { keepPreviousData, useQuery } from '@tanstack/react-query'
import { MessagesSquare } from 'lucide-react'
import type { Job, RolloutStep, StepRollouts } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { classes } from '../../lib/classes.ts'
import { isOver } from '../../lib/events.ts'
import { formatCount, formatNumber, plural } from '../../lib/format.ts'
import { refresh_ms } from '../../lib/query.ts'
import { TextLink } from '../../ui/button.tsx'
import { Slider } from '../../ui/choices.tsx'
import { Disclosure, Help } from '../../ui/disclosure.tsx'
import { Badge, EmptyState, Loaded, type Tone } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { LongText } from '../../ui/long-text.tsx'
import { Segments } from '../../ui/toggles.tsx'

type Split = 'training' | 'validation'
type Rollouts = NonNullable<StepRollouts['training']>
type Group = Rollouts['groups'][number]
type Answer = Group['answers'][number]

interface Choice {
  /** Undefined: the latest, also when a later one comes. */
  step?: number | undefined
  split?: Split | undefined
}

export function RolloutBrowser({
  job,
  chosen,
  onChoose,
}: {
  job: Job
  chosen: Choice
  onChoose: (choice: Choice) => void
}) {
  const query = useQuery({
    queryKey: ['jobs', job.id, 'rollouts', isOver(job)],
    queryFn: ({ signal }) => allSteps(job.id, signal),
    refetchInterval: isOver(job) ? false : refresh_ms,
    placeholderData: keepPreviousData,
  })
  return (
    <Card
      title={
        <>
          Rollouts{' '}
          <Help word="a rollout">
            An answer that the model was made to give, and that the graders scored. Some of each step are kept. Read
            them: a model finds what the graders reward, which may not be what you meant.
          </Help>
        </>
      }
      description="Answers of a step, with the score of each grader."
    >
      <Loaded query={query}>
        {(steps) =>
          steps.length === 0 ? (
            <EmptyState
              icon={<MessagesSquare aria-hidden />}
              title={isOver(job) ? 'No answers kept' : 'No answers yet'}
            >
              {isOver(job)
                ? 'The job ended before its first step, or an earlier version of the service trained it.'
                : 'The answers of the first step appear when they are scored.'}
            </EmptyState>
          ) : (
            <Steps job={job} steps={steps} chosen={chosen} onChoose={onChoose} />
          )
        }
      </Loaded>
    </Card>
  )
}

/** In the order of their steps. */
async function allSteps(job_id: string, signal: AbortSignal): Promise<RolloutStep[]> {
  const steps: RolloutStep[] = []
  for await (const step of tunery.jobs.rollouts.list(job_id, { limit: 100 }, { signal })) steps.push(step)
  return steps.reverse()
}

function Steps({
  job,
  steps,
  chosen,
  onChoose,
}: {
  job: Job
  steps: readonly RolloutStep[]
  chosen: Choice
  onChoose: (choice: Choice) => void
}) {
  const splits = (['training', 'validation'] as const).filter((split) => steps.some((step) => step[split]))
  const split = chosen.split && splits.includes(chosen.split) ? chosen.split : splits[0]!
  const shown = steps.filter((step) => step[split])
  // One that has no answers of this kind: those of the step before.
  const before = chosen.step === undefined ? -1 : shown.findLastIndex(({ step }) => step <= chosen.step!)
  const index = chosen.step === undefined ? shown.length - 1 : Math.max(0, before)
  const { step } = shown[index]!
  return (
    <div className="grid gap-4 pt-1">
      <div className="flex flex-wrap items-end gap-x-5 gap-y-3">
        {splits.length > 1 && (
          <Segments
            label="Prompts"
            value={split}
            onChange={(next) => onChoose({ ...chosen, split: next })}
            choices={[
              { value: 'training', label: 'Training' },
              { value: 'validation', label: 'Held-out' },
            ]}
          />
        )}
        {shown.length > 1 && (
          <div className="min-w-0 flex-1 basis-56 sm:max-w-xl">
            <Slider
              label="Step"
              value={index}
              onChange={(next) =>
                onChoose({ ...chosen, step: next === shown.length - 1 ? undefined : shown[next]!.step })
              }
              min={0}
              max={shown.length - 1}
              step={1}
              format={(at) => `${formatCount(shown[at]!.step)}${at === shown.length - 1 ? ' (latest)' : ''}`}
            />
          </div>
        )}
      </div>
      <Step job={job} step={step} split={split} />
    </div>
  )
}

function Step({ job, step, split }: { job: Job; step: number; split: Split }) {
  const query = useQuery({
    queryKey: ['jobs', job.id, 'rollouts', 'of', step],
    queryFn: ({ signal }) => tunery.jobs.rollouts.get(job.id, String(step), { signal }),
    placeholderData: keepPreviousData,
  })
  return (
    <Loaded query={query}>
      {(rollouts) => {
        const shown = rollouts[split]
        return (
          <div
            className={classes('grid gap-4 transition-opacity', query.isPlaceholderData && 'opacity-50')}
            aria-busy={query.isPlaceholderData}
          >
            {shown && (
              <>
                <Summary rollouts={shown} step={rollouts.step} split={split} />
                <ol className="grid gap-4">
                  {shown.groups.map((group, index) => (
                    <Prompt key={`${rollouts.step} ${index}`} group={group} dataset={datasetOf(job, split)} />
                  ))}
                </ol>
                {shown.prompts > shown.groups.length && (
                  <p className="text-sm text-muted">
                    {shown.groups.length} of {plural(shown.prompts, 'prompt')} are kept.
                  </p>
                )}
              </>
            )}
          </div>
        )
      }}
    </Loaded>
  )
}

const datasetOf = ({ dataset_id, resolved_config }: Job, split: Split) =>
  (split === 'validation' && resolved_config.evaluation_config.validation_dataset_id.value) || dataset_id

function Summary({ rollouts, step, split }: { rollouts: Rollouts; step: number; split: Split }) {
  const { reward, answers, prompts, failures } = rollouts
  return (
    <p className="flex flex-wrap items-center gap-x-3 gap-y-1 text-muted">
      <span className="font-medium text-ink">
        {split === 'training' ? `Step ${formatCount(step)}` : `Held-out prompts after step ${formatCount(step)}`}
      </span>
      <span>
        reward <span className="font-medium text-ink">{formatNumber(reward)}</span>
      </span>
      <span>
        {plural(answers, 'answer')} to {plural(prompts, 'prompt')}
      </span>
      {failures > 0 && <Badge tone="warn">{formatCount(failures)} without a score</Badge>}
    </p>
  )
}

const textOf = (content: unknown): string =>
  typeof content === 'string' ? content : content === null || content === undefined ? '' : JSON.stringify(content)

/** The messages before the answer, and the answer of the row if it has one. */
function partsOf(messages: readonly unknown[]) {
  const all = messages.map((message) => (message ?? {}) as { role?: unknown; content?: unknown })
  const reference = all.at(-1)?.role === 'assistant' ? textOf(all.at(-1)!.content) : undefined
  const asked = reference === undefined ? all : all.slice(0, -1)
  return { asked: asked.map(({ role, content }) => ({ role: textOf(role), text: textOf(content) })), reference }
}

function Prompt({ group, dataset }: { group: Group; dataset: string }) {
  const { row, line, messages, answers, answer_count } = group
  const { asked, reference } = partsOf(messages ?? [])
  const last = asked.at(-1)
  const best = Math.max(...answers.map(({ score }) => score ?? Number.NEGATIVE_INFINITY))
  const sorted = answers.toSorted((a, b) => (b.score ?? -1) - (a.score ?? -1))
  return (
    <li className="grid min-w-0 gap-3 rounded-lg p-3 ring-1 ring-line">
      <div className="grid gap-1.5">
        <div className="flex flex-wrap items-baseline gap-x-4 text-sm text-muted">
          <TextLink to="/datasets/$datasetId" params={{ datasetId: dataset }} search={{ tab: 'rows', row }}>
            Row {formatCount(row)}
            {line !== null && line !== row && `, line ${formatCount(line)}`}
          </TextLink>
          <span>{plural(answer_count, 'answer')}</span>
        </div>
        {messages === null ? (
          <p className="text-muted">The dataset was deleted, so the prompt can't be shown.</p>
        ) : (
          last && <Message label={last.role} text={last.text} />
        )}
        {asked.length > 1 && (
          <Disclosure quiet summary={plural(asked.length - 1, 'message before', 'messages before')}>
            <div className="grid gap-1.5">
              {asked.slice(0, -1).map(({ role, text }, index) => (
                <Message key={index} label={role} text={text} />
              ))}
            </div>
          </Disclosure>
        )}
        {reference !== undefined && <Message label="reference" text={reference} />}
      </div>
      <ol className="grid gap-2.5 sm:grid-cols-2 xl:grid-cols-4">
        {sorted.map((answer, index) => (
          <li key={index} className="min-w-0">
            <AnswerCard answer={answer} tone={toneOf(answer, best, answers)} />
          </li>
        ))}
      </ol>
      {answer_count > answers.length && (
        <p className="text-sm text-muted">{formatCount(answer_count - answers.length)} more were not kept.</p>
      )}
    </li>
  )
}

const Message = ({ label, text }: { label: string; text: string }) => (
  <div className="flex items-baseline gap-2">
    <Badge>{label}</Badge>
    <div className="min-w-0">
      <LongText text={text} />
    </div>
  </div>
)

/** The best of a group are learned from; where all are equal, none is. */
function toneOf({ score }: Answer, best: number, answers: readonly Answer[]): Tone {
  if (score === null) return 'warn'
  return score === best && answers.some((other) => other.score !== best) ? 'good' : 'neutral'
}

function AnswerCard({ answer, tone }: { answer: Answer; tone: Tone }) {
  const { score, text, tool_calls, episode, tokens, cut, graders, watched_graders = {}, error } = answer
  const verdicts = Object.entries(graders)
  const written = episode ? episode.messages : [text, tool_calls].filter(Boolean).join('\n')
  return (
    <article
      className={classes(
        'flex h-full min-w-0 flex-col rounded-md p-2.5',
        tone === 'good' ? 'bg-accent-soft' : 'ring-1 ring-line ring-inset',
      )}
    >
      <div className="mb-1.5 flex flex-wrap items-center gap-x-2 gap-y-1 text-sm">
        <Badge tone={tone}>{score === null ? 'no score' : formatNumber(score)}</Badge>
        <span className="text-muted">{plural(tokens, 'token')}</span>
        {episode && <span className="text-muted">{plural(episode.turns, 'turn')}</span>}
        {cut && <Badge tone="warn">cut</Badge>}
      </div>
      <div
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
        tabIndex={0}
        className="focus-inset max-h-48 flex-1 overflow-auto"
      >
        {written.trim() ? <LongText text={written} /> : <span className="text-muted">Empty answer</span>}
      </div>
      <ul aria-label="Graders" className="mt-2 grid gap-0.5 text-sm">
        {verdicts.map(([name, { score, label, error }]) => (
          <li key={name}>
            <span className="flex justify-between gap-2">
              <span className="min-w-0 truncate text-muted">{name}</span>{' '}
              <span className={score === null ? 'text-warn' : undefined}>
                {score === null ? 'failed' : (label ?? formatNumber(score))}
              </span>
            </span>
            {error && <span className="wrap-anywhere text-muted">{error}</span>}
          </li>
        ))}
        {Object.entries(watched_graders).map(([name, score]) => (
          <li key={name} className="flex justify-between gap-2 text-muted">
            <span className="min-w-0 truncate">{name} (watched)</span>
            <span>{score === null ? 'failed' : formatNumber(score)}</span>
          </li>
        ))}
      </ul>
      {error && verdicts.length === 0 && <p className="mt-2 text-sm wrap-anywhere text-warn">{error}</p>}
    </article>
  )
}
