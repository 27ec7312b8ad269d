import { TriangleAlert } from 'lucide-react'
import { memo } from 'react'
import { classes } from '../../lib/classes.ts'
import { formatDuration, formatNumber, formatPercent } from '../../lib/format.ts'
import { Badge, Notice } from '../../ui/feedback.tsx'
import { anyText, LongText } from '../../ui/long-text.tsx'
import { Popover } from '../../ui/popups.tsx'
import { Code } from '../../ui/values.tsx'
import { type Answer, type Token, tokensMax } from './state.ts'

/** One answer, with what it cost in time and the weights that gave it. */
export function AnswerView({ answer, same }: { answer: Answer; same: boolean }) {
  const { status, text, reasoning, tool_calls, tokens, error, finish_reason } = answer
  const byToken =
    status !== 'streaming' &&
    tokens !== undefined &&
    tokens.length <= tokensMax &&
    tokens.map((token) => token.text).join('') === text
  return (
    <div className="grid grid-cols-[minmax(0,1fr)] gap-2">
      {reasoning && (
        <details className="rounded-md bg-hover px-3 py-2 text-sm text-muted">
          <summary>Reasoning</summary>
          <div className="mt-2">
            <LongText text={reasoning} />
          </div>
        </details>
      )}
      <div className={classes('leading-relaxed', anyText)} data-testid="answer">
        {byToken ? <Tokens tokens={tokens} /> : <LongText text={text} />}
        {status === 'streaming' && (
          <span aria-hidden className="ml-0.5 inline-block h-4 w-1.5 animate-pulse bg-accent" />
        )}
      </div>
      {tool_calls?.map((call, index) => (
        <div key={index} className="rounded-md bg-hover p-2 font-mono text-sm break-all">
          <LongText text={`${call.name}(${call.arguments})`} />
        </div>
      ))}
      {error && <Notice tone="bad">{error}</Notice>}
      {status === 'done' && text.trim() === '' && !reasoning && !tool_calls?.length && (
        <p className="text-muted">Empty answer</p>
      )}
      {status === 'stopped' && <p className="text-sm text-muted">Stopped</p>}
      {finish_reason === 'length' && <Notice tone="warn">Cut off at max tokens. Increase it under Parameters.</Notice>}
      <div className="flex flex-wrap items-center gap-x-4 gap-y-1">
        <Figures answer={answer} />
        <Weights answer={answer} same={same} />
      </div>
      {byToken && <Legend />}
    </div>
  )
}

function Figures({ answer }: { answer: Answer }) {
  const { first_ms, total_ms, completion_tokens, prompt_tokens } = answer
  if (first_ms === undefined || total_ms === undefined) return null
  const seconds = (total_ms - first_ms) / 1000
  const rate = completion_tokens && seconds > 0 ? (completion_tokens - 1) / seconds : undefined
  const figures = [
    ['first token', formatDuration(first_ms / 1000)],
    ...(rate ? [['speed', `${formatNumber(rate)} tokens/s`]] : []),
    ...(completion_tokens === undefined ? [] : [['tokens', `${prompt_tokens} in, ${completion_tokens} out`]]),
    ['total', formatDuration(total_ms / 1000)],
  ] as const
  return (
    <dl className="flex flex-wrap gap-x-4 gap-y-1 text-xs text-muted">
      {figures.map(([name, value]) => (
        <div key={name} className="flex gap-1">
          <dt>{name}</dt>
          <dd className="text-ink">{value}</dd>
        </div>
      ))}
    </dl>
  )
}

/** What the engine says that it computed the answer with. */
function Weights({ answer, same }: { answer: Answer; same: boolean }) {
  if (!answer.weights) return null
  return (
    <span className="flex flex-wrap items-center gap-1.5 text-xs text-muted">
      {same && (
        <Badge tone="warn">
          <TriangleAlert aria-hidden className="size-3" /> same weights as another column
        </Badge>
      )}
      <Popover
        title="Fingerprint"
        trigger={
          <button type="button" className="rounded-sm underline decoration-dotted underline-offset-2 hover:text-ink">
            Details
          </button>
        }
      >
        <p className="mb-2 text-sm text-muted">The weights that gave this answer, as the engine reports them.</p>
        <Code>{answer.weights}</Code>
      </Popover>
    </span>
  )
}

/** What the shades of the tokens mean. */
const Legend = () => (
  <p className="text-xs text-muted">
    Token probability: <span className={`rounded-sm px-1 ${shadeOf(0.5)}`}>below 70%</span>{' '}
    <span className={`rounded-sm px-1 ${shadeOf(0)}`}>below 30%</span>
  </p>
)

const shadeOf = (probability: number) =>
  probability > 0.7
    ? ''
    : probability > 0.3
      ? 'bg-warn-soft'
      : 'bg-warn-soft underline decoration-warn decoration-dotted'

/** The tokens of an answer; those the model was unsure of are shaded. Each opens what else it might have been. */
const Tokens = memo(function Tokens({ tokens }: { tokens: readonly Token[] }) {
  return (
    <>
      {tokens.map((token, index) => {
        const probability = Math.exp(token.logprob)
        return (
          <Popover
            key={index}
            title={`Probability ${formatPercent(probability, 1)}`}
            trigger={
              <button
                type="button"
                className={`rounded-sm whitespace-pre-wrap hover:bg-accent-soft ${shadeOf(probability)}`}
                title={`${formatPercent(probability, 1)} (log-probability ${formatNumber(token.logprob)})`}
                tabIndex={-1}
              >
                {token.text}
              </button>
            }
          >
            <table className="text-sm">
              <tbody>
                {token.top.map((candidate) => (
                  <tr key={candidate.text}>
                    <td className="pr-4 font-mono">{JSON.stringify(candidate.text)}</td>
                    <td className="text-right">{formatPercent(Math.exp(candidate.logprob), 1)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Popover>
        )
      })}
    </>
  )
})
