import { useQuery, useQueryClient } from '@tanstack/react-query'
import { SendHorizontal, Square } from 'lucide-react'
import { useEffect, useRef, useState } from 'react'
import type { ChatChunk, EventStream, SharedModel } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatNumber, formatPercent, plural } from '../../lib/format.ts'
import { inFrames } from '../../lib/frames.ts'
import { Brand } from '../../ui/brand.tsx'
import { Button } from '../../ui/button.tsx'
import { EmptyState, Loaded, Notice } from '../../ui/feedback.tsx'
import { Textarea } from '../../ui/field.tsx'
import { Card, Page, Stat } from '../../ui/layout.tsx'
import { LongText } from '../../ui/long-text.tsx'
import { RelativeTime } from '../../ui/values.tsx'

/** `/share#TOKEN`: a model as people without an account see it. The token stays behind the `#`: it reaches no log. */
export default function SharePage() {
  const token = useToken()
  const query = useQuery({
    queryKey: ['share', token],
    queryFn: ({ signal }) => tunery.share.look({ token }, { signal }),
    enabled: token !== '',
    retry: false,
  })
  return (
    <>
      <header className="border-b border-line bg-surface px-4 py-3 sm:px-6">
        <Brand />
      </header>
      <main>
        <Page title={query.data?.name ?? 'Shared model'} width="narrow" description={query.data?.description}>
          {token === '' ? (
            <Card>
              <EmptyState title="Incomplete link">Open the whole link, including the part after #.</EmptyState>
            </Card>
          ) : (
            <Loaded query={query}>
              {(model) => (
                <div className="grid grid-cols-[minmax(0,1fr)] gap-4">
                  {model.evaluation && <Result model={model} evaluation={model.evaluation} />}
                  <Chat token={token} model={model} />
                </div>
              )}
            </Loaded>
          )}
        </Page>
      </main>
    </>
  )
}

/** What the address has behind the `#`, also when another link is opened in the same tab. */
function useToken(): string {
  const [token, setToken] = useState(() => location.hash.slice(1))
  useEffect(() => {
    const read = () => setToken(location.hash.slice(1))
    addEventListener('hashchange', read)
    return () => removeEventListener('hashchange', read)
  }, [])
  return token
}

function Result({ model, evaluation }: { model: SharedModel; evaluation: NonNullable<SharedModel['evaluation']> }) {
  const { name, rows, score, pass_rate, baseline_score, difference, finished_at } = evaluation
  return (
    <Card
      title="Evaluation"
      description={
        <>
          {name}, {plural(rows, 'row')}, <RelativeTime time={finished_at} />. Trained from {model.base_model_id}.
        </>
      }
    >
      <dl className="grid grid-cols-2 gap-4 sm:grid-cols-3">
        <Stat label="Score" value={formatNumber(score)} />
        <Stat label="Passed rows" value={formatPercent(pass_rate)} />
        {baseline_score !== null && (
          <Stat
            label="Baseline"
            value={formatNumber(baseline_score)}
            note={
              difference?.low != null
                ? `95% interval of the difference: ${formatNumber(difference.low)} to ${formatNumber(difference.high)}`
                : undefined
            }
          />
        )}
      </dl>
    </Card>
  )
}

interface Message {
  role: 'user' | 'assistant'
  content: string
}

function Chat({ token, model }: { token: string; model: SharedModel }) {
  const client = useQueryClient()
  const [messages, setMessages] = useState<Message[]>([])
  const [text, setText] = useState('')
  const [error, setError] = useState<string>()
  const [running, setRunning] = useState(false)
  const stop = useRef<AbortController>(undefined)
  useEffect(() => () => stop.current?.abort(), [])

  async function send() {
    const content = text.trim()
    if (!content || running) return
    const asked: Message[] = [...messages, { role: 'user', content }]
    const ended = new AbortController()
    stop.current = ended
    setText('')
    setError(undefined)
    setRunning(true)
    setMessages([...asked, { role: 'assistant', content: '' }])
    let answer = ''
    const tell = () => setMessages([...asked, { role: 'assistant', content: answer }])
    const frames = inFrames(tell)
    try {
      const stream = (await tunery.share.chat(
        { token, messages: asked, stream: true },
        { signal: ended.signal, timeout_ms: 120_000 },
      )) as EventStream<ChatChunk>
      for await (const chunk of stream) {
        answer += chunk.choices[0]?.delta.content ?? ''
        await frames.next()
      }
    } catch (failure) {
      if (!ended.signal.aborted) setError((failure as Error).message)
      if (!answer) setMessages(asked.slice(0, -1))
      if (!answer && !ended.signal.aborted) setText(content)
    } finally {
      frames.stop()
      if (answer) tell()
      setRunning(false)
      void client.invalidateQueries({ queryKey: ['share', token] })
    }
  }

  return (
    <Card
      title="Try it"
      description={
        `${plural(model.requests_left, 'question')} left today for all visitors. ` +
        `Answers are limited to ${model.max_tokens} tokens.`
      }
    >
      <div className="grid grid-cols-[minmax(0,1fr)] gap-3">
        <div aria-live="polite" className="grid grid-cols-[minmax(0,1fr)] gap-3">
          {messages.map((message, index) => (
            <div
              key={index}
              className={
                message.role === 'user'
                  ? 'ml-auto max-w-[85%] rounded-lg bg-accent-soft px-4 py-2'
                  : 'max-w-[85%] rounded-lg bg-hover px-4 py-2'
              }
            >
              <LongText text={message.content || '…'} />
            </div>
          ))}
        </div>
        {error && <Notice tone="bad">{error}</Notice>}
        <div className="flex items-end gap-2">
          <Textarea
            aria-label="Your question"
            placeholder="Ask…"
            rows={1}
            maxRows={8}
            value={text}
            disabled={model.requests_left === 0}
            onChange={(event) => setText(event.target.value)}
            onKeyDown={(event) => {
              if (event.key !== 'Enter' || event.shiftKey || event.nativeEvent.isComposing) return
              event.preventDefault()
              void send()
            }}
          />
          {running ? (
            <Button icon={<Square aria-hidden />} onClick={() => stop.current?.abort()}>
              Stop
            </Button>
          ) : (
            <Button
              variant="primary"
              icon={<SendHorizontal aria-hidden />}
              disabled={!text.trim() || model.requests_left === 0}
              onClick={() => void send()}
            >
              Send
            </Button>
          )}
        </div>
        {model.requests_left === 0 && (
          <p className="text-sm text-muted">
            No questions left today. Available again <RelativeTime time={model.resets_at} />.
          </p>
        )}
      </div>
    </Card>
  )
}
