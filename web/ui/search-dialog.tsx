// A dialog to type into: what fits stands below, and arrows and Enter open it.
import { Dialog } from '@base-ui/react/dialog'
import { useRouter } from '@tanstack/react-router'
import { CornerDownLeft, Search } from 'lucide-react'
import { type ReactNode, useDeferredValue, useEffect, useId, useRef, useState } from 'react'
import { classes } from '../lib/classes.ts'

export interface SearchResult {
  /** An address of the dashboard or the docs. */
  href: string
  icon: ReactNode
  title: ReactNode
  /** Beside the title: where it stands, or what it is. */
  note?: ReactNode
  /** Below the title. */
  detail?: ReactNode
}

interface SearchProps {
  label: string
  placeholder: string
  /** A hook: what fits the text, and what to say where nothing does. */
  useResults: (text: string) => { results: readonly SearchResult[]; said: string }
}

export function SearchDialog({
  open,
  onOpenChange,
  ...search
}: SearchProps & { open: boolean; onOpenChange: (open: boolean) => void }) {
  return (
    <Dialog.Root open={open} onOpenChange={onOpenChange}>
      <Dialog.Portal>
        <Dialog.Backdrop
          className={
            'fixed inset-0 z-40 bg-black/45 transition-opacity duration-150 data-ending-style:opacity-0 ' +
            'data-starting-style:opacity-0'
          }
        />
        <Dialog.Popup
          aria-label={search.label}
          className={
            'fixed top-[max(1rem,8vh)] left-1/2 z-40 flex max-h-[80dvh] w-[calc(100vw-1.5rem)] max-w-xl ' +
            '-translate-x-1/2 ' +
            'flex-col overflow-hidden rounded-xl bg-raised shadow-pop ring-1 ring-line outline-none'
          }
        >
          <SearchBox {...search} close={() => onOpenChange(false)} />
        </Dialog.Popup>
      </Dialog.Portal>
    </Dialog.Root>
  )
}

function SearchBox({ label, placeholder, useResults, close }: SearchProps & { close: () => void }) {
  const [text, setText] = useState('')
  const asked = useDeferredValue(text.trim())
  const { results, said } = useResults(asked)
  const router = useRouter()
  const list = useId()
  const chosenElement = useRef<HTMLDivElement>(null)

  // Which result is chosen counts for the list that it was chosen in.
  const [chosen, setChosen] = useState({ asked: '', at: 0 })
  const at = chosen.asked === asked ? Math.min(chosen.at, results.length - 1) : 0
  // biome-ignore lint/correctness/useExhaustiveDependencies: whatever moved the choice
  useEffect(() => {
    chosenElement.current?.scrollIntoView({ block: 'nearest' })
  }, [at, results])

  const go = (result: SearchResult | undefined) => {
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
          aria-label={label}
          placeholder={placeholder}
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
      <div role="status" className={results.length > 0 ? 'sr-only' : 'px-4 py-6 text-center text-muted wrap-anywhere'}>
        {results.length > 0 ? `${results.length} results` : said}
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
              {result.icon}
            </span>
            <span className="min-w-0 wrap-anywhere">
              <span className="block font-medium">
                {result.title}
                {result.note && <span className="ml-2 text-sm font-normal text-muted">{result.note}</span>}
              </span>
              {result.detail}
            </span>
            {index === at && <CornerDownLeft aria-hidden className="mt-0.5 size-4 text-muted max-sm:hidden" />}
          </div>
        ))}
      </div>
    </>
  )
}
