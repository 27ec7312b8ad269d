// What appears above the page: popovers, menus, dialogs and confirmations.
import { AlertDialog as BaseAlert } from '@base-ui/react/alert-dialog'
import { Dialog as BaseDialog } from '@base-ui/react/dialog'
import { Menu as BaseMenu } from '@base-ui/react/menu'
import { Popover as BasePopover } from '@base-ui/react/popover'
import { useBlocker } from '@tanstack/react-router'
import { X } from 'lucide-react'
import { type FormEvent, type ReactElement, type ReactNode, useEffect, useRef, useState } from 'react'
import { classes } from '../lib/classes.ts'
import { Button, buttonClass } from './button.tsx'

export const popupClass =
  'rounded-lg bg-raised text-ink shadow-pop ring-1 ring-line outline-none origin-(--transform-origin) ' +
  'transition-[opacity,scale] duration-100 data-starting-style:opacity-0 data-starting-style:scale-97 ' +
  'data-ending-style:opacity-0 data-ending-style:scale-97'

/** More on something, opened by a click: `trigger` is a button. */
export function Popover({
  trigger,
  title,
  children,
  align = 'start',
  className,
}: {
  trigger: ReactElement
  title?: ReactNode
  children: ReactNode
  align?: 'start' | 'center' | 'end'
  className?: string
}) {
  return (
    <BasePopover.Root>
      <BasePopover.Trigger render={trigger} />
      <BasePopover.Portal>
        <BasePopover.Positioner align={align} sideOffset={6} collisionPadding={8} className="z-40">
          <BasePopover.Popup className={classes(popupClass, 'max-w-[min(24rem,calc(100vw-1rem))] p-4', className)}>
            {title && <BasePopover.Title className="mb-2 font-semibold">{title}</BasePopover.Title>}
            {children}
          </BasePopover.Popup>
        </BasePopover.Positioner>
      </BasePopover.Portal>
    </BasePopover.Root>
  )
}

export interface MenuEntry {
  label: ReactNode
  icon?: ReactNode
  onClick?: () => void
  /** An address, of the dashboard or another, instead of `onClick`. */
  href?: string
  danger?: boolean
  disabled?: boolean
}
const itemClass =
  'flex w-full items-center gap-2.5 rounded-md px-2.5 py-1.5 text-base outline-none select-none ' +
  'any-pointer-coarse:py-2.5 ' +
  'data-highlighted:bg-hover data-disabled:opacity-50 [&_svg]:size-4 [&_svg]:shrink-0 [&_svg]:text-muted'

/** Actions behind one button. `null` draws a line between entries. */
export function Menu({
  trigger,
  entries,
  header,
  children,
  align = 'end',
  side = 'bottom',
}: {
  trigger: ReactElement
  entries: (MenuEntry | null)[]
  header?: ReactNode
  /** Between the header and the entries, such as a group of choices. */
  children?: ReactNode
  align?: 'start' | 'center' | 'end'
  side?: 'top' | 'bottom'
}) {
  return (
    <BaseMenu.Root>
      <BaseMenu.Trigger render={trigger} />
      <BaseMenu.Portal>
        <BaseMenu.Positioner align={align} side={side} sideOffset={6} collisionPadding={8} className="z-40">
          <BaseMenu.Popup className={classes(popupClass, 'min-w-44 max-w-72 p-1')}>
            {header && <div className="border-b border-line px-2.5 py-2">{header}</div>}
            {children}
            {entries.map((entry, index) => {
              if (!entry) return <BaseMenu.Separator key={`line-${index}`} className="mx-1 my-1 h-px bg-line" />
              const content = (
                <>
                  {entry.icon}
                  {entry.label}
                </>
              )
              const className = classes(itemClass, entry.danger && 'text-bad [&_svg]:text-bad')
              return entry.href ? (
                <BaseMenu.LinkItem key={index} className={className} href={entry.href} closeOnClick>
                  {content}
                </BaseMenu.LinkItem>
              ) : (
                <BaseMenu.Item key={index} className={className} onClick={entry.onClick} disabled={entry.disabled}>
                  {content}
                </BaseMenu.Item>
              )
            })}
          </BaseMenu.Popup>
        </BaseMenu.Positioner>
      </BaseMenu.Portal>
    </BaseMenu.Root>
  )
}

/** One of some values, inside a menu. */
export function MenuChoices<T extends string>({
  label,
  value,
  choices,
  onChange,
}: {
  label: string
  value: T
  choices: readonly { value: T; label: string; icon?: ReactNode }[]
  onChange: (value: T) => void
}) {
  return (
    <BaseMenu.Group className="border-b border-line p-1">
      <BaseMenu.GroupLabel className="px-1.5 py-1 text-xs text-muted">{label}</BaseMenu.GroupLabel>
      <BaseMenu.RadioGroup value={value} onValueChange={onChange} className="grid grid-cols-3 gap-1">
        {choices.map((choice) => (
          <BaseMenu.RadioItem
            key={choice.value}
            value={choice.value}
            closeOnClick={false}
            className={
              'flex flex-col items-center gap-1 rounded-md px-2 py-1.5 text-xs outline-none select-none ' +
              '[&_svg]:size-4 ' +
              'data-highlighted:bg-hover data-checked:bg-accent-soft data-checked:text-accent-ink'
            }
          >
            {choice.icon}
            {choice.label}
          </BaseMenu.RadioItem>
        ))}
      </BaseMenu.RadioGroup>
    </BaseMenu.Group>
  )
}

const backdropClass =
  'fixed inset-0 z-40 bg-black/45 transition-opacity duration-150 data-starting-style:opacity-0 ' +
  'data-ending-style:opacity-0'
const dialogClass = classes(
  'fixed z-40 flex max-h-[calc(100dvh-2rem)] flex-col rounded-xl bg-raised text-ink shadow-pop ring-1 ' +
    'ring-line outline-none',
  'top-1/2 left-1/2 w-[calc(100vw-2rem)] -translate-x-1/2 -translate-y-1/2',
  'transition-[opacity,scale] duration-150 data-starting-style:opacity-0 data-starting-style:scale-97',
  'data-ending-style:opacity-0 data-ending-style:scale-97',
)
const widths = { sm: 'max-w-md', md: 'max-w-xl', lg: 'max-w-3xl' }

/** A form or a closer look above the page. `footer` holds its buttons, the main one last. */
export function Dialog({
  open,
  onOpenChange,
  title,
  description,
  children,
  footer,
  width = 'md',
  kept,
}: {
  open: boolean
  onOpenChange: (open: boolean) => void
  title: ReactNode
  description?: ReactNode | undefined
  children?: ReactNode
  footer?: ReactNode
  width?: keyof typeof widths
  /** It closes by its buttons alone, as what it shows is not shown again. */
  kept?: boolean
}) {
  const unsaved = useUnsaved(open)
  return (
    <BaseDialog.Root
      open={open}
      onOpenChange={(next, { reason }) => {
        const slips = !next && (reason === 'escape-key' || reason === 'outside-press')
        if (slips && kept) return
        if (!slips || !unsaved.is()) onOpenChange(next)
        else if (reason === 'escape-key') unsaved.ask(() => onOpenChange(false))
      }}
    >
      <BaseDialog.Portal>
        <BaseDialog.Backdrop className={backdropClass} />
        <BaseDialog.Popup className={classes(dialogClass, widths[width])} {...unsaved.popup}>
          <div className="px-5 pt-4 pr-14 pb-3">
            <BaseDialog.Title className="text-lg font-semibold">{title}</BaseDialog.Title>
            {description && <BaseDialog.Description className="mt-1 text-muted">{description}</BaseDialog.Description>}
          </div>
          {children && <div className="min-h-0 flex-1 overflow-y-auto px-5 pb-5">{children}</div>}
          {footer && <div className="flex flex-wrap justify-end gap-2 border-t border-line px-5 py-3">{footer}</div>}
          {/* Last, so that the focus begins at the dialog's first control. */}
          <BaseDialog.Close
            aria-label="Close"
            className={classes(buttonClass('quiet', 'sm'), 'absolute top-3 right-3 w-7 px-0!')}
          >
            <X aria-hidden />
          </BaseDialog.Close>
        </BaseDialog.Popup>
      </BaseDialog.Portal>
      {unsaved.question}
    </BaseDialog.Root>
  )
}

/**
 * Keeps what was typed into a form of a dialog: a click beside it closes nothing, and Escape, Back or a closed tab ask
 * first. Its own buttons close it at once.
 */
function useUnsaved(open: boolean) {
  const popup = useRef<HTMLDivElement>(null)
  const [typed, setTyped] = useState(false)
  const [sent, setSent] = useState(false)
  const [leave, setLeave] = useState<() => void>()
  useEffect(() => {
    if (open) return
    setTyped(false)
    setSent(false)
  }, [open])
  // What was sent is no loss, unless it was refused: then the form says why.
  const is = () => open && typed && (!sent || popup.current?.querySelector('[role=alert], [data-invalid]') != null)
  const blocker = useBlocker({ shouldBlockFn: is, enableBeforeUnload: is, withResolver: true })
  return {
    is,
    ask: (then: () => void) => setLeave(() => then),
    popup: {
      ref: popup,
      onChange({ target }: FormEvent<HTMLElement>) {
        if (!(target as HTMLElement).closest('form')) return
        setTyped(true)
        setSent(false)
      },
      onSubmitCapture: () => setSent(true),
    },
    question: (
      <ConfirmDialog
        open={leave !== undefined || blocker.status === 'blocked'}
        onOpenChange={() => {
          setLeave(undefined)
          blocker.reset?.()
        }}
        title="Discard what you entered?"
        action="Discard"
        keep="Keep editing"
        onConfirm={() => {
          setTyped(false)
          leave?.()
          blocker.proceed?.()
        }}
      >
        The form has not been sent.
      </ConfirmDialog>
    ),
  }
}

/**
 * Asks before something that cannot be undone. `trigger` is the button that opens it, or control it by `open`.
 * `onConfirm` may return a promise: the dialog stays, busy, until it ends, and shows its error.
 */
export function ConfirmDialog({
  trigger,
  open,
  onOpenChange,
  title,
  children,
  action,
  keep = 'Cancel',
  danger = true,
  onConfirm,
}: {
  trigger?: ReactElement
  open?: boolean
  onOpenChange?: (open: boolean) => void
  title: ReactNode
  /** What happens, and what stays. */
  children: ReactNode
  /** The word on the button, such as `Delete dataset`. */
  action: string
  /** The word on the button that changes nothing; where `action` is to cancel something, another than `Cancel`. */
  keep?: string | undefined
  danger?: boolean
  onConfirm: () => unknown
}) {
  const [own, setOwn] = useState(false)
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<string>()
  const isOpen = open ?? own
  const change = (next: boolean) => {
    if (busy) return
    setError(undefined)
    setOwn(next)
    onOpenChange?.(next)
  }
  const confirm = async () => {
    setBusy(true)
    setError(undefined)
    try {
      await onConfirm()
      setOwn(false)
      onOpenChange?.(false)
    } catch (failure) {
      setError((failure as Error).message)
    } finally {
      setBusy(false)
    }
  }
  return (
    <BaseAlert.Root open={isOpen} onOpenChange={change}>
      {trigger && <BaseAlert.Trigger render={trigger} />}
      <BaseAlert.Portal>
        <BaseAlert.Backdrop className={backdropClass} />
        <BaseAlert.Popup className={classes(dialogClass, widths.sm)}>
          <div className="px-5 pt-4 pb-4">
            <BaseAlert.Title className="text-lg font-semibold">{title}</BaseAlert.Title>
            <BaseAlert.Description className="mt-2 text-muted" render={<div />}>
              {children}
            </BaseAlert.Description>
            {error && (
              <p role="alert" className="mt-3 rounded-md bg-bad-soft px-3 py-2 text-bad">
                {error}
              </p>
            )}
          </div>
          <div className="flex flex-wrap justify-end gap-2 border-t border-line px-5 py-3">
            <BaseAlert.Close render={<Button>{keep}</Button>} />
            <Button variant={danger ? 'danger' : 'primary'} busy={busy} onClick={confirm}>
              {action}
            </Button>
          </div>
        </BaseAlert.Popup>
      </BaseAlert.Portal>
    </BaseAlert.Root>
  )
}
