// The answer of one column to a question, and what can be done with it.
import { RotateCcw, Square, ThumbsUp } from 'lucide-react'
import { Button, IconButton } from '../../ui/button.tsx'
import { AnswerView } from './answer.tsx'
import type { Column, Turn } from './state.ts'
import { TrainingNotice } from './training-notice.tsx'

export function AnswerCell({
  turn,
  column,
  columns,
  letter,
  nameOf,
  blind,
  onVote,
  onStop,
  onRetry,
  tuned,
  system,
  onSystem,
}: {
  turn: Turn
  column: Column
  columns: readonly Column[]
  letter: string
  nameOf: (model: string) => string
  blind: boolean
  onVote: () => void
  onStop: () => void
  onRetry: () => void
  /** The id of the tuned model that answers, if it is one. */
  tuned: string | undefined
  /** The system prompt of the next question. */
  system: string
  onSystem: (system: string) => void
}) {
  const answer = turn.answers[column.id]
  const others = columns
    .flatMap(({ id }) => (id === column.id ? [] : [turn.answers[id]]))
    .filter((other) => other !== undefined)
  // Two columns of one model may differ by chance alone; two models that answer with the same weights are a mistake.
  const same = others.some(
    (other) => answer?.weights && other.weights === answer.weights && other.model !== answer.model,
  )
  const canVote =
    others.length > 0 && [answer, ...others].every((other) => other && other.status !== 'streaming' && other.text)
  return (
    <article aria-label={`Answer of model ${letter}`} className="min-w-0 rounded-lg bg-surface p-4 ring-1 ring-line">
      <header className="mb-2 flex items-center justify-between gap-2">
        <h2 className="min-w-0 truncate text-sm font-medium text-muted">
          {blind ? `Model ${letter}` : nameOf(answer?.model ?? column.model)}
        </h2>
        <div className="flex shrink-0 gap-1">
          {answer?.status === 'streaming' ? (
            <IconButton size="sm" label="Stop this answer" icon={<Square aria-hidden />} onClick={onStop} />
          ) : (
            answer && <IconButton size="sm" label="Regenerate" icon={<RotateCcw aria-hidden />} onClick={onRetry} />
          )}
          {canVote && (
            <Button
              size="sm"
              variant={turn.better === column.id ? 'primary' : 'secondary'}
              aria-pressed={turn.better === column.id}
              icon={<ThumbsUp aria-hidden />}
              disabled={turn.better !== undefined && turn.better !== column.id}
              onClick={onVote}
            >
              Better answer
            </Button>
          )}
        </div>
      </header>
      {answer ? (
        <div className="grid gap-3">
          <AnswerView answer={blind ? { ...answer, weights: undefined } : answer} same={same} />
          {!blind && answer.warnings && (
            <TrainingNotice warnings={answer.warnings} tuned={tuned} system={system} onSystem={onSystem} />
          )}
        </div>
      ) : (
        <p className="text-sm text-muted">Not asked</p>
      )}
    </article>
  )
}
