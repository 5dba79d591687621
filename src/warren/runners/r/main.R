# Takes the requests of an R context and runs them. main.sh starts it. Everything is local: cells see no name of it.
local({
  folder <- commandArgs(trailingOnly = TRUE)[[1]]
  count <- 0L
  max_text <- 1024L * 1024L
  max_field <- 8L * max_text

  # Frames ------------------------------------------------------------------------------------------------------------

  # Returns when the keeper has the frame, so that results keep their place among printed text.
  send <- function(type, json) suspendInterrupts({
    payload <- charToRaw(json)
    path <- file.path(folder, "frame")
    size <- as.raw(bitwAnd(bitwShiftR(length(payload), c(24L, 16L, 8L, 0L)), 255L))
    writeBin(c(charToRaw(type), size, payload), path)
    frames <- file(file.path(folder, "frames"), "wb", raw = TRUE)
    writeLines("frame", frames)
    close(frames)
    sent <- file(file.path(folder, "sent"), "rb", raw = TRUE)
    on.exit(close(sent))
    readLines(sent, 1L)
  })

  receive <- function() {
    requests <- file(file.path(folder, "requests"), "rb", raw = TRUE)
    on.exit(close(requests))
    header <- readBin(requests, "raw", 5L)
    if (length(header) < 5L) quit("no")
    size <- sum(as.integer(header[2:5]) * 256^(3:0))
    payload <- readBin(requests, "raw", size)
    text <- rawToChar(payload)
    Encoding(text) <- "UTF-8"
    parse_request(text)
  }

  # JSON --------------------------------------------------------------------------------------------------------------

  # The strings of {"code": "…", "env": {"NAME": "…"}}. JSON has no raw control characters: 1 and 2 stand for escaped
  # backslashes and quotes, so that the other quotes are where strings begin and end.
  parse_request <- function(text) {
    text <- gsub("\\\\", "\001", text, fixed = TRUE)
    text <- gsub("\\\"", "\002", text, fixed = TRUE)
    parts <- strsplit(text, "\"", fixed = TRUE)[[1]]
    request <- list(code = "", env = list())
    inside <- ""
    place <- 2L
    while (place + 2L <= length(parts)) {
      if (grepl("^\\s*:\\s*$", parts[[place + 1L]])) {
        value <- unquote(parts[[place + 2L]])
        if (inside == "env") request$env[[parts[[place]]]] <- value
        else if (parts[[place]] == "code") request$code <- value
        if (place + 3L <= length(parts) && grepl("}", parts[[place + 3L]], fixed = TRUE)) inside <- ""
        place <- place + 4L
      } else {
        if (grepl("{", parts[[place + 1L]], fixed = TRUE)) inside <- parts[[place]]
        place <- place + 2L
      }
    }
    request
  }

  escapes <- c("\\n" = "\n", "\\t" = "\t", "\\r" = "\r", "\\b" = "\b", "\\f" = "\f", "\\/" = "/")

  unquote <- function(text) {
    for (escape in names(escapes)) text <- gsub(escape, escapes[[escape]], text, fixed = TRUE)
    found <- gregexpr("\\\\u[0-9a-fA-F]{4}(?:(?<=[dD][89abAB]..)\\\\u[0-9a-fA-F]{4})?", text, perl = TRUE)
    if (found[[1]][[1]] > 0L) regmatches(text, found) <- list(vapply(regmatches(text, found)[[1]], character_of, ""))
    text <- gsub("\002", "\"", text, fixed = TRUE)
    gsub("\001", "\\", text, fixed = TRUE)
  }

  character_of <- function(escape) {
    units <- strtoi(strsplit(substring(escape, 3L), "\\u", fixed = TRUE)[[1]], 16L)
    if (length(units) == 2L) units <- 0x10000 + (units[[1]] - 0xD800) * 0x400 + units[[2]] - 0xDC00
    if (units == 0) "" else intToUtf8(units)
  }

  quoted <- function(text) {
    text <- enc2utf8(as.character(text))
    text <- iconv(text, "UTF-8", "UTF-8", sub = "byte")
    text <- gsub("\\", "\\\\", text, fixed = TRUE)
    text <- gsub("\"", "\\\"", text, fixed = TRUE)
    for (escape in names(escapes)[1:5]) text <- gsub(escapes[[escape]], escape, text, fixed = TRUE)
    text <- gsub("[\001-\037]", "?", text)
    paste0("\"", text, "\"")
  }

  # A vector as an array; dates and factors as their texts, what has no number as null.
  array_of <- function(values) {
    if (is.list(values)) values <- vapply(values, function(one) paste(format(one), collapse = " "), "")
    items <- if (is.logical(values)) ifelse(values, "true", "false")
    else if (is.numeric(values) && !is.object(values)) ifelse(is.finite(values), formatC(values, digits = 15, width = 1L, format = "g"), NA)
    else quoted(as.character(values))
    items[is.na(values) | is.na(items)] <- "null"
    paste0("[", paste(items, collapse = ", "), "]")
  }

  object_of <- function(fields) paste0("{", paste(quoted(names(fields)), unlist(fields), sep = ": ", collapse = ", "), "}")

  base64 <- function(bytes) {
    alphabet <- c(LETTERS, letters, 0:9, "+", "/")
    missing <- (3L - length(bytes) %% 3L) %% 3L
    groups <- matrix(as.integer(c(bytes, raw(missing))), nrow = 3L)
    word <- groups[1L, ] * 65536L + groups[2L, ] * 256L + groups[3L, ]
    digits <- rbind(word %/% 262144L, word %/% 4096L %% 64L, word %/% 64L %% 64L, word %% 64L)
    text <- alphabet[digits + 1L]
    if (missing) text[length(text) - seq_len(missing) + 1L] <- "="
    paste(text, collapse = "")
  }

  # Results -----------------------------------------------------------------------------------------------------------

  show_result <- function(fields, is_main) {
    cut <- character()
    for (name in names(fields)) {
      limit <- if (name == "text") max_text else max_field
      if (nchar(fields[[name]], "bytes") <= limit) next
      cut <- c(cut, name)
      fields[[name]] <- if (name == "text") quoted(substr(fields[[name]], 2L, limit)) # a quarter of it is kept at least
    }
    if (length(cut)) fields$cut <- array_of(cut)
    send("r", object_of(c(list(type = quoted("result"), is_main_result = if (is_main) "true" else "false"), fields)))
  }

  result_of <- function(value) {
    lines <- utils::capture.output(shown <- withVisible(if (isS4(value)) methods::show(value) else print(value)))
    fields <- list()
    if (length(lines)) fields$text <- quoted(paste(lines, collapse = "\n"))
    if (is.data.frame(value)) {
      fields$html <- quoted(table_of(value))
      fields$data <- object_of(lapply(value, array_of))
    }
    fields
  }

  table_of <- function(frame) {
    escaped <- function(text) gsub("<", "&lt;", gsub("&", "&amp;", as.character(text), fixed = TRUE), fixed = TRUE)
    row_of <- function(cells, tag) paste0("<tr>", paste0("<", tag, ">", escaped(cells), "</", tag, ">", collapse = ""), "</tr>")
    shown <- utils::head(frame, 60L)
    cells <- lapply(shown, format)
    rows <- vapply(seq_len(nrow(shown)), function(i) row_of(c(rownames(shown)[[i]], vapply(cells, `[[`, "", i)), "td"), "")
    paste0("<table><thead>", row_of(c("", names(frame)), "th"), "</thead><tbody>", paste(rows, collapse = ""), "</tbody></table>")
  }

  # Plots -------------------------------------------------------------------------------------------------------------

  our_device <- NULL

  open_device <- function(...) {
    grDevices::png(file.path(folder, "plot%04d.png"), width = 960, height = 720, res = 120)
    our_device <<- grDevices::dev.cur()
  }

  # Cells cannot add to a plot of an earlier one: each plot is finished with its cell.
  show_plots <- function() {
    if (is.null(our_device)) return(invisible())
    if (our_device %in% grDevices::dev.list()) grDevices::dev.off(our_device)
    our_device <<- NULL
    for (path in sort(list.files(folder, "^plot[0-9]+[.]png$", full.names = TRUE))) {
      bytes <- readBin(path, "raw", file.size(path))
      unlink(path)
      show_result(list(png = paste0("\"", base64(bytes), "\"")), FALSE)
    }
  }

  # Cells -------------------------------------------------------------------------------------------------------------

  run <- function(request) {
    count <<- count + 1L
    name <- sprintf("cell_%d.R", count)
    before <- Sys.getenv(names(request$env), unset = NA, names = TRUE)
    if (length(request$env)) do.call(Sys.setenv, request$env)
    error <- tryCatch(allowInterrupts(run_code(request$code, name)), interrupt = function(condition) {
      list(name = "Interrupted", value = "The cell was interrupted.", traceback = "")
    })
    tryCatch(show_plots(), error = function(condition) message(conditionMessage(condition)))
    for (key in names(before)) if (is.na(before[[key]])) Sys.unsetenv(key) else do.call(Sys.setenv, as.list(before[key]))
    error <- if (is.null(error)) "null" else object_of(lapply(error, quoted))
    send("x", object_of(list(execution_count = count, error = error)))
    tryCatch(allowInterrupts(Sys.sleep(0)), interrupt = function(condition) NULL) # one that came too late
  }

  # NULL, or what went wrong. What is visible is printed, as at R's prompt; the last value is a result.
  run_code <- function(code, name) {
    source_file <- srcfilecopy(name, strsplit(code, "\n", fixed = TRUE)[[1]])
    expressions <- tryCatch(parse(text = code, keep.source = TRUE, srcfile = source_file, encoding = "UTF-8"), error = identity)
    if (inherits(expressions, "error")) return(syntax_error(conditionMessage(expressions)))
    calls <- NULL
    tryCatch(
      withCallingHandlers(
        for (place in seq_along(expressions)) {
          shown <- withVisible(eval(expressions[place], globalenv()))
          if (!shown$visible) next
          if (place < length(expressions)) print(shown$value)
          else if (length(fields <- result_of(shown$value))) show_result(fields, TRUE)
        },
        warning = function(condition) if (is_ours(conditionCall(condition)) && getOption("warn") == 1) {
          message("Warning: ", conditionMessage(condition))
          invokeRestart("muffleWarning")
        },
        error = function(condition) calls <<- sys.calls()
      ),
      error = function(condition) error_of(condition, calls, name)
    )
  }

  syntax_error <- function(message) {
    list(name = "SyntaxError", value = strsplit(message, "\n", fixed = TRUE)[[1]][[1]], traceback = message)
  }

  is_ours <- function(call) is.null(call) || identical(call, quote(eval(expressions[place], globalenv()))) || identical(call[[1L]], quote(withVisible))

  # Of the calls only those of the cell count: from its eval on, up to the handlers.
  error_of <- function(condition, calls, name) {
    texts <- vapply(calls, function(call) paste(deparse(call, nlines = 1L), collapse = " "), "")
    first <- grep("eval(expressions[place], globalenv())", texts, fixed = TRUE)
    last <- grep("^(h|\\.handleSimpleError|\\(function \\(condition\\)|doTryCatch|signalCondition)", texts)
    last <- last[last > max(c(first, 0L))]
    places <- seq_along(calls)
    if (length(first)) places <- places[places > max(first)]
    if (length(last)) places <- places[places < min(last)]
    places <- places[!grepl("^(stop|\\.rs)\\(", texts[places])]
    where <- vapply(calls[places], function(call) {
      reference <- attr(call, "srcref")
      if (is.null(reference)) "" else sprintf(" at %s:%d", basename(attr(reference, "srcfile")$filename), reference[[1L]])
    }, "")
    call <- conditionCall(condition)
    head <- if (is_ours(call)) "Error: " else paste0("Error in ", paste(deparse(call, nlines = 1L), collapse = " "), " : ")
    kind <- class(condition)[[1L]]
    lines <- c(paste0(head, conditionMessage(condition)), sprintf("  %s%s", texts[places], where))
    list(
      name = if (kind == "simpleError") "Error" else kind,
      value = shortened(conditionMessage(condition), 16384L),
      traceback = shortened(paste(lines, collapse = "\n"), 131072L)
    )
  }

  shortened <- function(text, most) {
    count <- nchar(text, allowNA = TRUE)
    if (is.na(count) || count <= most) return(text)
    left <- sprintf("\n... %d characters are left out here ...\n", count - most)
    paste0(substr(text, 1L, most %/% 2L), left, substr(text, count - most %/% 2L + 1L, count))
  }

  options(warn = 1, device = open_device, keep.source = TRUE, menu.graphics = FALSE)
  send("h", object_of(list(version = quoted(paste(R.version$major, R.version$minor, sep = ".")))))
  suspendInterrupts(repeat run(receive())) # only cells can be interrupted
})
