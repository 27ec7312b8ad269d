// The search of the docs: titles, headings and text of all pages, and the operations of the API.
import { Dialog } from '@base-ui/react/dialog'
import { useQuery } from '@tanstack/react-query'
import { useRouter } from '@tanstack/react-router'
import { CornerDownLeft, FileText, Hash, Search } from 'lucide-react'
import { useDeferredValue, useEffect, useId, useMemo, useRef, useState } from 'react'
import { classes } from '../../lib/classes.ts'
import { type Found, searchOptions } from '../../lib/docs-search.ts'
import { operationsOf, useDescription } from '../../lib/openapi.ts'
import { MethodName } from '../../ui/method.tsx'

const most = 12

interface Result {
  href: string
  title: string
  /** Where it stands, or an operation's path. */
  place?: string
  excerpt?: string
  method?: string
  terms: string[]
}

export function SearchDialog({ open, onOpenChange }: { open: boolean; onOpenChange: (open: boolean) => void }) {
  return (
    <Dialog.Root open={open} onOpenChange={onOpenChange}>
      <Dialog.Portal>
        <Dialog.Backdrop className="fixed inset-0 z-40 bg-black/45 transition-opacity duration-150 data-ending-style:opacity-0 data-starting-style:opacity-0" />
        <Dialog.Popup
          aria-label="Search the docs"
          className={
            'fixed top-[max(1rem,8vh)] left-1/2 z-40 flex max-h-[80dvh] w-[calc(100vw-1.5rem)] max-w-xl -translate-x-1/2 ' +
            'flex-col overflow-hidden rounded-xl bg-raised shadow-pop ring-1 ring-line outline-none'
          }
        >
          <SearchBox close={() => onOpenChange(false)} />
        </Dialog.Popup>
      </Dialog.Portal>
    </Dialog.Root>
  )
}

/** Loaded when the search is opened for the first time. */
const useIndex = () =>
  useQuery({
    queryKey: ['docs-search'],
    queryFn: async () => {
      const [{ default: MiniSearch }, { default: text }] = await Promise.all([
        import('minisearch'),
        import('virtual:docs-search'),
      ])
      return MiniSearch.loadJSON<Found>(text, searchOptions)
    },
    staleTime: Number.POSITIVE_INFINITY,
  })

function SearchBox({ close }: { close: () => void }) {
  const [text, setText] = useState('')
  const asked = useDeferredValue(text.trim())
  const { data: index, error } = useIndex()
  const { data: description } = useDescription()
  const router = useRouter()
  const list = useId()
  const chosenElement = useRef<HTMLDivElement>(null)

  const results = useMemo((): Result[] => {
    if (asked === '' || !index) return []
    const words = asked.toLowerCase().split(/\s+/)
    const operations = description ? operationsOf(description) : []
    const called = operations.filter(({ id, path, summary, method }) => {
      const all = `${id} ${method} ${path} ${summary}`.toLowerCase()
      return words.every((word) => all.includes(word))
    })
    return [
      ...index.search(asked).map((found): Result => {
        const { id, page, heading, excerpt } = found as unknown as Found
        return {
          href: `/docs/${id}`,
          title: heading || page,
          ...(heading && { place: page }),
          excerpt,
          terms: found.queryTerms,
        }
      }),
    ]
      .slice(0, called.length > 0 ? most - 4 : most)
      .concat(
        called.slice(0, 5).map(({ id, method, path, summary }) => ({
          href: `/docs/api#${id}`,
          title: summary,
          place: path,
          method,
          terms: words,
        })),
      )
  }, [asked, index, description])

  // Which result is chosen counts for the list that it was chosen in.
  const [chosen, setChosen] = useState({ asked: '', at: 0 })
  const at = chosen.asked === asked ? Math.min(chosen.at, results.length - 1) : 0
  // biome-ignore lint/correctness/useExhaustiveDependencies: whatever moved the choice
  useEffect(() => {
    chosenElement.current?.scrollIntoView({ block: 'nearest' })
  }, [at, results])

  const go = (result: Result | undefined) => {
    if (!result) return
    close()
    router.history.push(result.href)
  }
  const onKeyDown = (event: React.KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key]
    if (step) {
      event.preventDefault()
      setChosen({ asked, at: (at + step + results.length) % Math.max(1, results.length) })
    } else if (event.key === 'Enter' && !event.nativeEvent.isComposing) go(results[at])
  }

  return (
    <>
      <div className="flex items-center gap-2.5 border-b border-line px-4">
        <Search aria-hidden className="size-4.5 shrink-0 text-muted" />
        <input
          // biome-ignore lint/a11y/noAutofocus: the dialog is opened to type
          autoFocus
          role="combobox"
          aria-expanded={results.length > 0}
          aria-controls={list}
          aria-activedescendant={results[at] ? `${list}-${at}` : undefined}
          aria-label="Search the docs"
          placeholder="Search pages and operations"
          value={text}
          onChange={(event) => setText(event.target.value)}
          onKeyDown={onKeyDown}
          spellCheck={false}
          autoComplete="off"
          className="h-13 min-w-0 flex-1 bg-transparent text-[1rem] outline-none"
        />
        <kbd aria-hidden className="rounded-sm border border-line px-1.5 font-mono text-xs text-muted max-sm:hidden">
          Esc
        </kbd>
      </div>
      <div role="status" className={results.length > 0 ? 'sr-only' : 'px-4 py-6 text-center text-muted'}>
        {error
          ? `The search could not be loaded: ${error.message}`
          : asked === ''
            ? 'Type a word: a task, a setting, an error code.'
            : !index
              ? 'Loading…'
              : results.length === 0
                ? `Nothing has “${asked}”. Try fewer or other words.`
                : `${results.length} results`}
      </div>
      <div
        id={list}
        role="listbox"
        aria-label="Results"
        className="min-h-0 overflow-y-auto overscroll-contain p-2 empty:hidden"
      >
        {results.map((result, index) => (
          // biome-ignore lint/a11y/useKeyWithClickEvents: the field takes the keys, for the chosen one
          <div
            key={result.href}
            id={`${list}-${index}`}
            ref={index === at ? chosenElement : undefined}
            role="option"
            tabIndex={-1}
            aria-selected={index === at}
            onClick={() => go(result)}
            onPointerMove={() => index !== at && setChosen({ asked, at: index })}
            className={classes(
              'grid cursor-pointer grid-cols-[1.125rem_1fr_auto] items-start gap-x-2.5 rounded-md px-2.5 py-2',
              index === at && 'bg-hover',
            )}
          >
            <span aria-hidden className="mt-0.5 text-muted [&_svg]:size-4">
              {result.place && !result.method ? <Hash /> : <FileText />}
            </span>
            <span className="min-w-0">
              <span className="block font-medium">
                <Marked text={result.title} terms={result.terms} />
                {result.place && !result.method && (
                  <span className="ml-2 text-sm font-normal text-muted">{result.place}</span>
                )}
              </span>
              {result.method && (
                <span className="flex items-baseline gap-2 text-sm text-muted">
                  <MethodName method={result.method} /> <code className="truncate font-mono">{result.place}</code>
                </span>
              )}
              {result.excerpt && (
                <span className="line-clamp-2 text-sm text-muted">
                  <Marked text={around(result.excerpt, result.terms)} terms={result.terms} />
                </span>
              )}
            </span>
            {index === at && <CornerDownLeft aria-hidden className="mt-0.5 size-4 text-muted max-sm:hidden" />}
          </div>
        ))}
      </div>
    </>
  )
}

/** The part of a text that has the first of the words. */
function around(text: string, terms: string[]): string {
  const lower = text.toLowerCase()
  const found = terms.map((term) => lower.indexOf(term.toLowerCase())).filter((at) => at >= 0)
  const at = Math.min(...found, text.length)
  if (found.length === 0 || at < 90) return text
  return `…${text.slice(text.lastIndexOf(' ', at - 40) + 1)}`
}

function Marked({ text, terms }: { text: string; terms: string[] }) {
  const words = terms.filter((term) => term.length > 1).map((term) => term.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'))
  if (words.length === 0) return text
  return text.split(new RegExp(`(${words.join('|')})`, 'gi')).map((part, index) =>
    index % 2 === 1 ? (
      <mark key={index} className="rounded-sm bg-accent-soft text-accent-ink">
        {part}
      </mark>
    ) : (
      part
    ),
  )
}
