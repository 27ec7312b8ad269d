import { useQuery } from '@tanstack/react-query'
import { useSearch } from '@tanstack/react-router'
import { Code2, Pencil, Plus, SquarePen, Trash2 } from 'lucide-react'
import { useEffect, useRef, useState } from 'react'
import { randomId } from '../../../sdk/http.ts'
import { tunery } from '../../lib/api.ts'
import { noteComparison } from '../../lib/compared.ts'
import { plural } from '../../lib/format.ts'
import { contentOf, withFiles } from '../../lib/pictures.ts'
import { useMay, useSession } from '../../lib/session.ts'
import { Button, IconButton, TextLink } from '../../ui/button.tsx'
import { type Choice, Combobox } from '../../ui/choices.tsx'
import { CodeTabs } from '../../ui/code.tsx'
import { EmptyState, ErrorState, Notice } from '../../ui/feedback.tsx'
import { firstProblem } from '../../ui/field.tsx'
import { Card, Page } from '../../ui/layout.tsx'
import { LongText } from '../../ui/long-text.tsx'
import { Thumbnails } from '../../ui/pictures.tsx'
import { Dialog } from '../../ui/popups.tsx'
import { Switch } from '../../ui/toggles.tsx'
import { AnswerCell } from './answer-cell.tsx'
import { ask, messagesOf, requestOf } from './ask.ts'
import { hasPictures, samplesOf } from './code.ts'
import { Composer } from './composer.tsx'
import { ParametersPanel } from './parameters.tsx'
import { RowsPanel } from './rows.tsx'
import { type Column, type Turn, usePlayground, useQuestion, type Vote } from './state.ts'
import { useTrainingRows } from './training-rows.ts'
import { Votes } from './votes.tsx'

const columnsMax = 4

export default function PlaygroundPage() {
  const mayAsk = useMay('inference')
  const { profile } = useSession()
  if (!mayAsk)
    return (
      <Page title="Playground">
        <Card>
          <EmptyState title="No access">
            Your role ({profile.role}) can't call models. Ask an admin or owner of the account.
          </EmptyState>
        </Card>
      </Page>
    )
  return <Playground account={profile.account.id} />
}

/** Everything that can be called: deployments first, then tuned models, then bases. */
function useModels() {
  return useQuery({
    queryKey: ['models', 'callable', 'choices'],
    queryFn: async ({ signal }) => {
      const [callable, tuned, deployments] = await Promise.all([
        tunery.models.callable.list({ signal }),
        tunery.models.list({ limit: 100 }, { signal }).catch(() => undefined),
        tunery.deployments.list({ limit: 100 }, { signal }).catch(() => undefined),
      ])
      const tunedNames = new Map(tuned?.items.map(({ id, name }) => [id, name]))
      const bases = new Map(tuned?.items.map(({ id, base_model_id }) => [id, base_model_id]))
      const deployed = new Map(deployments?.items.map(({ name, model }) => [name, model]))
      const noteOf = (model: string) => `Deployment of ${tunedNames.get(model) ?? model}`
      return callable.data
        .filter(({ category }) => category !== 'embedding')
        .map(({ id }): Choice & { model: string } => {
          const model = deployed.get(id)
          const note = bases.has(id) ? `Based on ${bases.get(id)}` : 'Base model'
          return { value: id, label: tunedNames.get(id) ?? id, note: model ? noteOf(model) : note, model: model ?? id }
        })
    },
  })
}

function Playground({ account }: { account: string }) {
  const search = useSearch({ from: '/shell/playground' })
  const [state, dispatch] = usePlayground(account, search.models?.split(',').filter(Boolean).slice(0, columnsMax) ?? [])
  const { columns, parameters, turns, votes } = state
  const models = useModels()
  const [text, setText] = useQuestion()
  const [pictures, setPictures] = useState<string[]>([])
  const [blind, setBlind] = useState(false)
  const [problem, setProblem] = useState<string>()
  const [shownCode, setShownCode] = useState(false)
  const stops = useRef(new Map<string, AbortController>())
  const [running, setRunning] = useState(0)
  const end = useRef<HTMLDivElement>(null)
  // A page that is left stops what it asked for.
  useEffect(
    () => () => {
      for (const stop of stops.current.values()) stop.abort()
    },
    [],
  )

  /** The tuned model that a name stands for. */
  const tunedOf = (name: string) => {
    const model = models.data?.find(({ value }) => value === name)?.model ?? name
    return model.startsWith('mdl_') ? model : undefined
  }
  const trained = useTrainingRows(columns.map(({ model }) => tunedOf(model)).findLast((model) => model !== undefined))
  const { examples } = trained

  // The first time: the first model of the list.
  const first = models.data?.[0]?.value
  useEffect(() => {
    if (first && columns.length === 1 && !columns[0]!.model)
      dispatch({ type: 'columns', columns: [{ ...columns[0]!, model: first }] })
  }, [first, columns, dispatch])

  async function answer(turn: Turn, before: readonly Turn[], column: Column): Promise<void> {
    const stop = new AbortController()
    const key = `${turn.id} ${column.id}`
    stops.current.set(key, stop)
    setRunning((count) => count + 1)
    try {
      const request = requestOf(column.model, messagesOf([...before, turn], column.id, parameters), parameters)
      await ask(request, stop.signal, (each) =>
        dispatch({ type: 'answer', turn: turn.id, column: column.id, answer: each }),
      )
    } finally {
      stops.current.delete(key)
      setRunning((count) => count - 1)
    }
  }

  function send() {
    const user = text.trim()
    if ((!user && pictures.length === 0) || running > 0) return
    const asked = columns.filter(({ model }) => model)
    try {
      requestOf('check', [], parameters)
    } catch (error) {
      return setProblem((error as Error).message)
    }
    if (asked.length === 0) return setProblem('Choose a model.')
    const wrong = firstProblem()
    if (wrong) return wrong.focus()
    setProblem(undefined)
    setText('')
    setPictures([])
    const turn: Turn = { id: randomId(), user, ...(pictures.length > 0 && { pictures }), answers: {} }
    dispatch({ type: 'ask', turn })
    for (const column of asked) void answer(turn, turns, column)
    if (asked.length > 1) noteComparison(account)
    requestAnimationFrame(() => end.current?.scrollIntoView({ block: 'end' }))
  }

  /** Bounded with the pictures of the whole conversation, which all go into the next request. */
  async function attach(files: File[]): Promise<void> {
    const before = turns.flatMap((turn) => turn.pictures ?? [])
    const added = await withFiles([...before, ...pictures], files)
    setPictures(added.pictures.slice(before.length))
    setProblem(added.problem)
  }

  /** Takes the turn, and those after it, back into the input. */
  function edit(turn: Turn): void {
    setText(turn.user)
    setPictures(turn.pictures ?? [])
    dispatch({ type: 'cut', turn: turn.id })
  }

  function vote(turn: Turn, better: Column): void {
    if (turn.better) return
    const prompt = messagesOf([...turns.slice(0, turns.indexOf(turn)), { ...turn, answers: {} }], better.id, parameters)
    const chosen = turn.answers[better.id]!
    const made = columns.flatMap((other): Vote[] => {
      const rejected = turn.answers[other.id]
      return other.id !== better.id && rejected?.text && rejected.text !== chosen.text
        ? [
            {
              id: randomId(),
              prompt,
              chosen: chosen.text,
              rejected: rejected.text,
              models: { chosen: chosen.model, rejected: rejected.model },
            },
          ]
        : []
    })
    dispatch({ type: 'vote', turn: turn.id, better: better.id, votes: made })
  }

  const add = () =>
    dispatch({ type: 'columns', columns: [...columns, { id: randomId(), model: columns.at(-1)?.model ?? '' }] })
  const letter = (index: number) => String.fromCharCode(65 + index)
  const request = () => {
    try {
      return requestOf(
        columns[0]!.model || 'MODEL',
        messagesOf(turns, columns[0]!.id, parameters).concat(
          text || pictures.length > 0 ? [{ role: 'user', content: contentOf(text, pictures) }] : [],
        ),
        parameters,
      )
    } catch {
      return undefined
    }
  }
  return (
    <Page
      title="Playground"
      actions={
        <>
          <Button icon={<Code2 aria-hidden />} onClick={() => setShownCode(true)}>
            View code
          </Button>
          <Button
            icon={<SquarePen aria-hidden />}
            disabled={turns.length === 0}
            onClick={() => dispatch({ type: 'clear' })}
          >
            New conversation
          </Button>
          <Button icon={<Plus aria-hidden />} disabled={columns.length >= columnsMax} onClick={add}>
            Add model
          </Button>
        </>
      }
    >
      <div className="grid items-start gap-4 lg:grid-cols-[minmax(0,1fr)_19rem]">
        <div className="grid min-w-0 gap-4">
          <Card>
            {models.isError ? (
              <ErrorState error={models.error} retry={() => void models.refetch()} />
            ) : (
              <div className="grid gap-3" style={gridOf(columns.length)}>
                {columns.map((column, index) => (
                  <div key={column.id} className="flex min-w-0 items-center gap-2">
                    <div className="min-w-0 flex-1">
                      {blind ? (
                        <p className="font-medium">Model {letter(index)}</p>
                      ) : (
                        <Combobox
                          aria-label={`Model ${letter(index)}`}
                          value={column.model || null}
                          onChange={(model) =>
                            dispatch({
                              type: 'columns',
                              columns: columns.map((each) =>
                                each.id === column.id ? { ...each, model: model ?? '' } : each,
                              ),
                            })
                          }
                          choices={models.data ?? []}
                          placeholder="Choose a model"
                        />
                      )}
                    </div>
                    {columns.length > 1 && (
                      <IconButton
                        label={`Remove model ${letter(index)}`}
                        icon={<Trash2 aria-hidden />}
                        onClick={() =>
                          dispatch({ type: 'columns', columns: columns.filter(({ id }) => id !== column.id) })
                        }
                      />
                    )}
                  </div>
                ))}
              </div>
            )}
          </Card>
          {turns.length === 0 && (
            <Card>
              <EmptyState
                title="Ask a question"
                action={examples.map((example) => (
                  <Button key={example} size="sm" onClick={() => setText(example)}>
                    <span className="max-w-72 truncate">{example}</span>
                  </Button>
                ))}
              >
                Every model gets the same question, and answers appear side by side.
                {examples.length > 0 && ' Try a prompt from the training data:'}
              </EmptyState>
            </Card>
          )}
          {turns.map((turn) => (
            <section
              key={turn.id}
              aria-label={`Question: ${turn.user.slice(0, 80)}`}
              className="grid grid-cols-[minmax(0,1fr)] gap-3"
            >
              <div className="group flex items-start justify-end gap-2">
                <IconButton
                  size="sm"
                  label="Edit and resend"
                  icon={<Pencil aria-hidden />}
                  disabled={running > 0}
                  onClick={() => edit(turn)}
                />
                <div className="grid max-w-2xl min-w-0 gap-2 rounded-lg bg-accent-soft px-4 py-2">
                  <Thumbnails urls={turn.pictures ?? []} name="of the question" />
                  {turn.lost && (
                    <p className="text-sm text-muted">
                      {plural(turn.lost, 'picture')} not kept after reloading the page.
                    </p>
                  )}
                  {turn.user && <LongText text={turn.user} />}
                </div>
              </div>
              <div className="grid gap-3" style={gridOf(columns.length)}>
                {columns.map((column, index) => (
                  <AnswerCell
                    key={column.id}
                    turn={turn}
                    column={column}
                    columns={columns}
                    letter={letter(index)}
                    nameOf={(id) => models.data?.find(({ value }) => value === id)?.label ?? id}
                    blind={blind && !turn.better}
                    onVote={() => vote(turn, column)}
                    onStop={() => stops.current.get(`${turn.id} ${column.id}`)?.abort()}
                    onRetry={() => void answer(turn, turns.slice(0, turns.indexOf(turn)), column)}
                    tuned={tunedOf(turn.answers[column.id]?.model ?? column.model)}
                    system={parameters.system}
                    onSystem={(system) => dispatch({ type: 'parameters', parameters: { ...parameters, system } })}
                  />
                ))}
              </div>
            </section>
          ))}
          <div ref={end} className="sticky bottom-0 z-10 bg-canvas pb-3">
            <Composer
              text={text}
              onText={setText}
              pictures={pictures}
              onFiles={(files) => void attach(files)}
              onRemove={(index) => setPictures(pictures.toSpliced(index, 1))}
              problem={problem}
              running={running > 0}
              onSend={send}
              onStop={() => {
                for (const stop of stops.current.values()) stop.abort()
              }}
            />
          </div>
          <RowsPanel columns={columns} parameters={parameters} of={search.rows} />
        </div>
        <div className="grid gap-4">
          <ParametersPanel
            value={parameters}
            onChange={(next) => dispatch({ type: 'parameters', parameters: next })}
            trainedWith={trained.system}
          />
          {columns.length > 1 && (
            <Card>
              <Switch label="Blind" help="Hides model names until you vote." checked={blind} onChange={setBlind} />
            </Card>
          )}
          <Votes votes={votes} onClear={() => dispatch({ type: 'votes', votes: [] })} />
        </div>
      </div>
      <Dialog open={shownCode} onOpenChange={setShownCode} title="View code" width="lg">
        {shownCode &&
          (request() ? (
            <>
              {hasPictures(request()!) && (
                <p className="mb-3 text-sm text-muted">
                  Pictures are shortened here. Your code sends the whole file as base64.
                </p>
              )}
              <CodeTabs label="Language" samples={samplesOf(request()!)} />
              <p className="mt-3 text-sm text-muted">
                Set TUNERY_KEY to one of your{' '}
                <TextLink to="/settings/$section" params={{ section: 'keys' }}>
                  API keys
                </TextLink>
                .
              </p>
            </>
          ) : (
            <Notice tone="bad">Tools or schema are not valid JSON.</Notice>
          ))}
      </Dialog>
    </Page>
  )
}

/** Columns side by side where there is room, else one below the other. */
const gridOf = (count: number) => ({
  gridTemplateColumns: `repeat(auto-fit, minmax(min(100%, max(16rem, ${Math.floor(90 / count)}% )), 1fr))`,
})
